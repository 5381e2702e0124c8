"use strict";
(() => {
  const root = document.documentElement;
  const live = document.querySelector(".live");

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

  // Labels in figures, under the mouse, a finger or the arrow keys; they replace titles, which browsers show late.
  const words = new Map();
  for (const title of document.querySelectorAll(".stop > title")) {
    words.set(title.parentNode, title.textContent);
    title.remove();
  }
  const label = document.createElement("div");
  label.className = "over-figure";
  label.hidden = true;
  document.body.append(label);
  let here = null;
  function point(stop) {
    if (here) here.classList.remove("here");
    here = stop;
    label.hidden = !stop;
    if (!stop) return;
    stop.classList.add("here");
    label.textContent = words.get(stop);
    const { left, right, top, bottom } = stop.getBoundingClientRect();
    const wide = label.offsetWidth + 8;
    const x = right + wide < root.clientWidth ? right + 8 : left - wide;
    label.style.left = `${scrollX + Math.max(x, 0)}px`;
    label.style.top = `${scrollY + (x < 0 ? bottom + 8 : top)}px`; // below it on a narrow screen
  }
  addEventListener("pointerover", ({ target }) => point(target.closest(".stop")));
  for (const plot of document.querySelectorAll(".plot")) {
    const stops = [...plot.querySelectorAll(".stop")];
    const wide = Number(plot.dataset.wide); // cells in a row of a map
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
      const to = event.key === "Escape" ? null : stops[stops.indexOf(here) + by];
      if (to === undefined) return;
      event.preventDefault();
      point(to);
      live.textContent = to ? words.get(to) : "";
    });
    plot.addEventListener("blur", () => point(null));
  }
})();
