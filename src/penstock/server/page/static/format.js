// Numbers for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

// Three digits that count: 1.23, 12.3, 123, 1,234.
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

// 97 → "1:37"
export function duration(seconds) {
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const padded = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${padded(minutes)}:${padded(rest)}` : `${minutes}:${padded(rest)}`;
}

export const count = (value) => Math.round(value).toLocaleString("en");

// [number, unit]
export function bytesParts(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return [short(value), UNITS[unit]];
}

export const bytes = (value) => bytesParts(value).join(" ");
export const percentNumber = (share) => (100 * share).toFixed(share === 0 || share > 0.9995 ? 0 : 1);
export const percent = (share) => (Number.isFinite(share) ? `${percentNumber(share)} %` : "–");
