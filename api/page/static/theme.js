// Loaded before anything is drawn, so that no page flashes in the theme that was not chosen.
(() => {
  const KEY = "kernelcast-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return window.localStorage.getItem(KEY);
    } catch {
      return null; // Storage is switched off: the system's theme.
    }
  };
  let chosen = stored();
  const apply = () => {
    const system = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : system;
  };
  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply();
    try {
      window.localStorage.setItem(KEY, chosen);
    } catch {
      return; // It holds until the page is left.
    }
  });
})();

// What every view needs, asked for while the page's script is still on its way; with an API key, `catalogue.js` asks.
(() => {
  try {
    if (window.sessionStorage.getItem("kernelcast-key") !== null) return;
  } catch {
    // Storage is switched off, and with it keys of earlier loads.
  }
  globalThis.devicesUnderWay = fetch("v1/devices").catch(() => null);
})();
