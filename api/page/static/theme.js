// Loaded before anything is drawn, so that no page flashes in the theme that was not chosen.
(() => {
  const KEY = "kernelcast-theme";
  const read = () => {
    try {
      return window.localStorage.getItem(KEY);
    } catch {
      return null; // Storage is switched off: the system's theme.
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(read());
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    const next = shown === "dark" ? "light" : "dark";
    apply(next);
    try {
      window.localStorage.setItem(KEY, next);
    } catch {
      return; // It holds until the page is left.
    }
  });
})();
