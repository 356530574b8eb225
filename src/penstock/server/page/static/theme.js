// Light or dark: as the system wants it, until somebody chooses.  Not a module, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("penstock.theme");
  } catch {}

  const apply = () => {
    root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("theme"));
  };
  apply();
  system.addEventListener("change", apply);

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("penstock.theme", chosen);
      } catch {}
      apply();
    });
  });
})();
