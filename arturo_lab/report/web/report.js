const views = {};
// The report: one view per section, changed by its controls; values under the pointer or the arrow keys.
for (const figure of document.querySelectorAll("figure.curves")) {
  const index = figure.dataset.section, section = DATA.sections[index];
  const controls = document.querySelector(`.controls[data-section="${index}"]`);
  const svg = figure.querySelector("svg.plot"), tip = figure.querySelector(".tip"), live = figure.querySelector("[aria-live]");
  const view = { metric: section.metrics[0]?.name, x: "epochs", scale: "linear", focus: true, singles: false, hidden: new Set() };
  const kept = DATA.kept?.views?.[index];
  if (kept) Object.assign(view, kept, { hidden: new Set(kept.hidden) });
  views[index] = view;
  let scene = null, at = null; // `at` is the epoch looked at (0 is the first), null for none

  const redraw = () => {
    if (!section.metrics.length) return;
    scene = draw(svg, section, view);
    look(at);
  };

  const press = (selector, attribute) => controls.querySelectorAll(selector).forEach((button) => button.addEventListener("click", () => {
    view[attribute] = button.dataset[attribute];
    controls.querySelectorAll(selector).forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    redraw();
  }));
  press("[data-x]", "x");
  press("[data-scale]", "scale");
  for (const name of ["focus", "singles"]) {
    const button = controls.querySelector(`[data-control="${name}"]`);
    button.addEventListener("click", () => { view[name] = !view[name]; button.setAttribute("aria-pressed", String(view[name])); redraw(); });
  }
  controls.querySelector("select").addEventListener("change", (event) => { view.metric = event.target.value; redraw(); });
  for (const button of controls.querySelectorAll("[data-series]")) {
    button.addEventListener("click", () => {
      const series = Number(button.dataset.series);
      if (!view.hidden.delete(series)) view.hidden.add(series);
      button.setAttribute("aria-pressed", String(!view.hidden.has(series)));
      redraw();
    });
  }

  if (kept) { // a live page that loaded itself anew
    controls.querySelector("select").value = view.metric;
    for (const name of ["x", "scale"]) for (const button of controls.querySelectorAll(`[data-${name}]`)) button.setAttribute("aria-pressed", String(button.dataset[name] === view[name]));
    for (const name of ["focus", "singles"]) controls.querySelector(`[data-control="${name}"]`).setAttribute("aria-pressed", String(view[name]));
    for (const button of controls.querySelectorAll("[data-series]")) button.setAttribute("aria-pressed", String(!view.hidden.has(Number(button.dataset.series))));
  }

  // The means of the visible lines at an epoch; over time, at the moment the longest line ends that epoch.
  const visible = () => scene.drawn.filter((line) => line.visible && line.mean.length);
  const longest = () => visible().reduce((a, b) => (b.mean.at(-1).x > a.mean.at(-1).x ? b : a));
  const pick = (line, x) => view.x === "epochs" ? line.mean[x - 1] : line.mean.findLast((p) => p.x <= x + 1e-9);

  function look(epoch, moment) {
    if (!scene) return;
    scene.overlay.replaceChildren();
    tip.hidden = true;
    at = epoch;
    if (epoch === null || !visible().length) return;
    const guide = longest().mean;
    at = Math.max(0, Math.min(epoch, guide.length - 1));
    const x = view.x === "epochs" ? at + 1 : moment ?? guide[at].x;
    node("line", { x1: scene.x(x), x2: scene.x(x), y1: MARGIN.top, y2: scene.bottom, class: "cross" }, scene.overlay);
    const rows = visible().map((line) => ({ line, point: pick(line, x) })).filter(({ point }) => point && point.y !== null);
    for (const { line, point } of rows) {
      const cy = scene.y(point.y);
      if (cy >= MARGIN.top - 6 && cy <= scene.bottom) node("circle", { cx: scene.x(point.x), cy, r: 4.5, class: "series point", style: line.series.colours }, scene.overlay);
    }
    const better = scene.metric.higher && !(scene.metric.percent && view.scale === "log") ? -1 : 1;
    rows.sort((a, b) => better * (a.point.y - b.point.y));
    const heading = view.x === "epochs" ? `epoch ${x}` : `${say({}, x)} s`;
    fill(heading, rows);
    const box = tip.getBoundingClientRect(), room = figure.getBoundingClientRect().width, left = scene.x(x) + 14;
    tip.style.transform = `translate(${Math.max(0, left + box.width > room ? scene.x(x) - box.width - 14 : left)}px, ${MARGIN.top + 6}px)`;
    return { heading, rows };
  }

  // Text goes in as text: labels come from files.
  function fill(heading, rows) {
    const title = document.createElement("strong"), table = document.createElement("table");
    title.textContent = heading;
    for (const { line, point } of rows) {
      const row = table.insertRow(), key = row.insertCell();
      const swatch = node("svg", { class: "key series", viewBox: "0 0 30 10", style: line.series.colours }, key);
      node("line", { x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": line.series.dashes }, swatch);
      key.append(line.series.label + (view.x === "epochs" ? "" : ` (epoch ${point.i + 1})`));
      row.insertCell().textContent = say(scene.metric, point.y);
      row.insertCell().textContent = point.low === null ? "" : `${say(scene.metric, point.low)} to ${say(scene.metric, point.high)}`;
    }
    tip.replaceChildren(title, table);
    tip.hidden = rows.length === 0;
  }

  const point = (event) => {
    if (!scene) return;
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * scene.width / box.width;
    const value = scene.first + (scene.last - scene.first) * (px - scene.x(scene.first)) / ((scene.x(scene.last) - scene.x(scene.first)) || 1);
    if (!visible().length) return;
    if (view.x === "epochs") look(Math.round(value) - 1);
    else {
      const moment = Math.max(0, Math.min(value, scene.last)), guide = longest().mean;
      look(Math.max(0, guide.findLastIndex((p) => p.x <= moment)), moment);
    }
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point); // a tap does not move
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") look(null); }); // a finger leaves when it lifts
  addEventListener("pointerdown", (event) => { if (!figure.contains(event.target)) look(null); });
  svg.addEventListener("blur", () => look(null));
  svg.addEventListener("keydown", (event) => {
    if (!scene || !visible().length) return;
    const end = longest().mean.length - 1;
    const to = { ArrowRight: at === null ? 0 : at + 1, ArrowLeft: at === null ? end : at - 1, Home: 0, End: end, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const said = look(to);
    live.textContent = said ? `${said.heading}: ` + said.rows.map(({ line, point }) => `${line.series.label} ${say(scene.metric, point.y)}`).join(", ") : "";
  });
  new ResizeObserver(redraw).observe(svg);
  addEventListener("beforeprint", () => { look(null); draw(svg, section, view, [700, 300]); }); // the width of a sheet
  addEventListener("afterprint", redraw);
  redraw();
}
