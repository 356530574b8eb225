// Small values that survive a reload, where the browser lets a page keep any.

export function load(storage, name, otherwise) {
  try {
    return JSON.parse(storage().getItem(`penstock.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function save(storage, name, value) {
  try {
    storage().setItem(`penstock.${name}`, JSON.stringify(value));
  } catch {}
}

export function remove(storage, name) {
  try {
    storage().removeItem(`penstock.${name}`);
  } catch {}
}

export const forTab = () => sessionStorage;
export const forBrowser = () => localStorage;
