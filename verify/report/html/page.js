"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".figure")];
  const drawn = new Set();
  const config = { displayModeBar: false, responsive: true, doubleClick: false };

  // A figure names its colours as the style sheet does, so that it follows light, dark and paper.
  function coloured(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, style)]));
  }

  // plotly is large: it waits as text until the first figure comes into view, so that the page can be read at once.
  function plotly() {
    if (window.Plotly) return window.Plotly;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
    return window.Plotly;
  }

  function draw(place, fixed = false) {
    const { data, layout } = coloured(figures[place.id], getComputedStyle(root));
    if (fixed) { // plotly cannot measure the paper
      layout.width = place.clientWidth;
      const edges = layout.margin.t + layout.margin.b;
      layout.height = edges + 0.7 * (layout.height - edges);
    } else {
      layout.autosize = true;
    }
    place.style.height = `${layout.height}px`;
    drawn.add(place);
    plotly().react(place, data, layout, config);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      if (!drawn.has(target)) draw(target);
    }
  }, { rootMargin: "300px" });
  places.forEach((place) => seen.observe(place));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((place) => draw(place)));
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    places.forEach((place) => draw(place, true));
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    drawn.forEach((place) => draw(place));
  });

  // Tabs: links between the parts become tabs over one part. What a browser's search finds opens its part.
  for (const list of document.querySelectorAll("nav.tabs")) {
    const tabs = [...list.querySelectorAll("a")];
    const panels = tabs.map((tab) => document.getElementById(tab.hash.slice(1)));
    const select = (chosen, focus) => {
      tabs.forEach((tab, at) => {
        const is = at === chosen;
        tab.setAttribute("aria-selected", String(is));
        tab.tabIndex = is ? 0 : -1;
        if (is) panels[at].removeAttribute("hidden");
        else panels[at].setAttribute("hidden", "until-found");
      });
      if (focus) tabs[chosen].focus();
    };
    list.setAttribute("role", "tablist");
    tabs.forEach((tab, at) => {
      tab.id = `${panels[at].id}-tab`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panels[at].id);
      panels[at].setAttribute("role", "tabpanel");
      panels[at].setAttribute("aria-labelledby", tab.id);
      panels[at].tabIndex = 0;
      panels[at].addEventListener("beforematch", () => select(at, false));
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        history.replaceState(null, "", tab.hash);
        select(at, false);
      });
      tab.addEventListener("keydown", (event) => {
        const last = tabs.length - 1;
        const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at ? at - 1 : last, Home: 0, End: last, " ": at }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        history.replaceState(null, "", tabs[to].hash);
        select(to, true);
      });
    });
    const asked = () => panels.findIndex((panel) => `#${panel.id}` === location.hash);
    addEventListener("hashchange", () => asked() >= 0 && select(asked(), false));
    select(Math.max(asked(), 0), false);
  }

  // Copying: by the clipboard, else by the older command, else the line is left selected.
  const live = document.querySelector(".live");
  for (const line of document.querySelectorAll(".replay")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the replay line");
    button.addEventListener("click", async () => {
      const code = line.querySelector("code");
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Selected";
      live.textContent = done ? "The replay line is copied." : "The replay line is selected: copy it with the keyboard.";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    line.append(button);
  }
})();
