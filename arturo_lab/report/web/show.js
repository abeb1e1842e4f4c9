// The player: every landscape three times, as a whole, up close at the trust region, and as a curve of the loss.
const SIZE = 400, TOP = 12, BOTTOM = 372, LOWEST = 1e-12, HIGHEST = 3e3;
const hidden = new Set();
let step = DATA.start, timer = null;

const svg = (name, attributes, parent) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent?.append(node);
  return node;
};
const place = (window, [x, y]) => [SIZE * (x - window[0]) / (window[1] - window[0]), SIZE * (window[3] - y) / (window[3] - window[2])];
const line = (window, points) => points.map((point) => place(window, point).map((v) => v.toFixed(1)).join(" ")).join("L").replace(/^/, "M");
const short = (value) => value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(3)));

function ground(parent, name, window, cells, lines) {
  svg("path", { d: contours(LOSSES[name], window, cells, lines), class: "contour", transform: `matrix(${SIZE} 0 0 ${-SIZE} 0 ${SIZE})` }, parent);
}

// Everything that is drawn once; returns a function that draws the rest at a step.
function card(landscape) {
  const box = document.getElementById(landscape.name);
  const [whole, close, curve] = box.querySelectorAll("svg");
  const said = box.querySelector(".said");
  const colours = (way) => ({ class: "series", style: `--light:${way.light};--dark:${way.dark}` });

  axes(curve);
  ground(whole, landscape.name, landscape.window, 120, 16);
  const star = place(landscape.window, landscape.minimum);
  svg("text", { x: star[0], y: star[1] + 7, class: "star", "text-anchor": "middle" }, whole).textContent = "★";
  const wholeRegion = svg("ellipse", { class: "region" }, whole);
  const movers = landscape.ways.map((way) => ({
    way,
    trail: svg("path", { ...colours(way), fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linejoin": "round" }, whole),
    head: svg("circle", { ...colours(way), r: 6, fill: "currentColor", class: "series head" }, whole),
    all: svg("path", { ...colours(way), fill: "none", stroke: "currentColor", "stroke-width": 1.2, opacity: 0.3, d: lossPath(way.losses) }, curve),
    loss: svg("path", { ...colours(way), fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": way.dashes }, curve),
  }));
  const now = svg("line", { y1: TOP, y2: BOTTOM, class: "now" }, curve);

  return () => {
    for (const { way, trail, head, all, loss } of movers) {
      const last = Math.min(step, way.points.length - 1), gone = hidden.has(way.name) ? "none" : "";
      trail.setAttribute("d", line(landscape.window, way.points.slice(0, last + 1)));
      const [x, y] = place(landscape.window, way.points[last]);
      head.setAttribute("cx", x); head.setAttribute("cy", y);
      loss.setAttribute("d", lossPath(way.losses.slice(0, last + 1)));
      for (const node of [trail, head, all, loss]) node.style.display = gone;
    }
    now.setAttribute("x1", lossX(step)); now.setAttribute("x2", lossX(step));
    const region = landscape.regions[Math.min(step, landscape.regions.length - 1)];
    ellipse(wholeRegion, landscape.window, region.mean, region.radii);
    closeUp(close, landscape, region);
    said.textContent = sentence(landscape, region);
  };
}

const lossX = (t) => 44 + 350 * t / DATA.steps;
const lossY = (value) => BOTTOM - (BOTTOM - TOP) * Math.log10(Math.max(value, LOWEST) / LOWEST) / Math.log10(HIGHEST / LOWEST);
const lossPath = (losses) => "M" + losses.map((value, t) => `${lossX(t).toFixed(1)} ${lossY(value).toFixed(1)}`).join("L");

function axes(curve) {
  for (let power = -9; power <= 3; power += 3) {
    svg("line", { x1: 44, x2: 394, y1: lossY(10 ** power), y2: lossY(10 ** power), class: "grid" }, curve);
    const label = svg("text", { x: 38, y: lossY(10 ** power) + 4, "text-anchor": "end" }, curve);
    label.textContent = power === 0 ? "1" : "10";
    if (power !== 0) svg("tspan", { dy: -5, "font-size": 9 }, label).textContent = String(power).replace("-", "−");
  }
  for (let k = 0; k <= 3; k++) {
    const t = Math.round(DATA.steps * k / 3);
    svg("text", { x: lossX(t), y: BOTTOM + 20, "text-anchor": k === 3 ? "end" : "middle" }, curve).textContent = k === 3 ? `step ${t}` : t;
  }
}

function ellipse(node, window, [x, y], [rx, ry]) {
  const [cx, cy] = place(window, [x, y]);
  const attributes = { cx, cy, rx: SIZE * rx / (window[1] - window[0]), ry: SIZE * ry / (window[3] - window[2]) };
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
}

// The paper's first figure at this step. A model's optimum too far away to show leaves the picture as a line.
function closeUp(close, landscape, region) {
  close.replaceChildren();
  const { mean, radii, taken, gradient, optimum } = region;
  const far = optimum && Math.hypot(optimum[0] - mean[0], optimum[1] - mean[1]) > 6 * Math.max(...radii);
  const corners = [[mean[0] - radii[0], mean[1] - radii[1]], [mean[0] + radii[0], mean[1] + radii[1]], ...(optimum && !far ? [optimum] : [])];
  const low = [0, 1].map((k) => Math.min(...corners.map((c) => c[k]))), high = [0, 1].map((k) => Math.max(...corners.map((c) => c[k])));
  const half = 0.64 * Math.max(high[0] - low[0], high[1] - low[1]), middle = [0, 1].map((k) => (low[k] + high[k]) / 2);
  const window = [middle[0] - half, middle[0] + half, middle[1] - half, middle[1] + half];
  ground(close, landscape.name, window, 60, 14);
  const own = landscape.ways.find((way) => way.name === "arturo");
  svg("path", { d: line(window, own.points.slice(0, Math.min(step, own.points.length - 1) + 1)), class: "behind" }, close);
  if (optimum && !far) {
    for (const share of [0.35, 0.65, 1]) ellipse(svg("ellipse", { class: "level" }, close), window, optimum, region.level.map((r) => share * r));
    const [x, y] = place(window, optimum);
    svg("path", { d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10`, class: "cross" }, close);
  }
  ellipse(svg("ellipse", { class: "region" }, close), window, mean, radii);
  if (optimum) arrow(close, place(window, mean), place(window, optimum), "model");
  arrow(close, place(window, mean), place(window, gradient), "gradient");
  arrow(close, place(window, mean), place(window, taken), "taken");
  const [x, y] = place(window, mean);
  svg("circle", { cx: x, cy: y, r: 4.5, class: "mean" }, close);
}

function arrow(parent, [x0, y0], [x1, y1], kind) {
  const length = Math.hypot(x1 - x0, y1 - y0), u = [(x1 - x0) / (length || 1), (y1 - y0) / (length || 1)];
  svg("line", { x1: x0, y1: y0, x2: x1, y2: y1, class: `arrow ${kind}` }, parent);
  const back = (side) => `${x1 - 11 * u[0] + side * 4.5 * u[1]} ${y1 - 11 * u[1] - side * 4.5 * u[0]}`;
  svg("path", { d: `M${x1} ${y1}L${back(1)}L${back(-1)}Z`, class: `tip ${kind}` }, parent);
}

function sentence(landscape, region) {
  const loss = LOSSES[landscape.name];
  const cut = region.eta > 0 ? `cut short, η = ${short(region.eta)}` : "the model's optimum is inside, η = 0";
  const model = region.optimum ? "" : " The model sees no minimum here: its curvature is not positive.";
  return `KL ${short(region.kl)} of ${short(region.bound)} nats (${cut}). Loss ${short(loss(...region.mean))} → ${short(loss(...region.taken))}; `
    + `a gradient step of the same bound: ${short(loss(...region.gradient))}.${model}`;
}

const draws = DATA.landscapes.map(card);
const slider = document.getElementById("step"), play = document.getElementById("play"), clock = document.getElementById("clock");
function show(to) {
  step = Math.max(0, Math.min(to, DATA.steps)); // so many are taken; the regions are those of the next one
  slider.value = step;
  clock.textContent = step < DATA.steps ? `step ${step + 1} of ${DATA.steps}` : `after ${DATA.steps} steps`;
  for (const draw of draws) draw();
}
function run(playing) {
  clearInterval(timer);
  timer = playing ? setInterval(() => (step < DATA.steps ? show(step + 1) : run(false)), Number(document.getElementById("speed").value)) : null;
  play.textContent = playing ? "Pause" : "Play";
}
slider.addEventListener("input", () => { run(false); show(Number(slider.value)); });
play.addEventListener("click", () => { if (timer === null && step === DATA.steps) show(0); run(timer === null); });
document.getElementById("speed").addEventListener("change", () => run(timer !== null));
for (const button of document.querySelectorAll("button[data-optimizer]")) {
  button.addEventListener("click", () => {
    const name = button.dataset.optimizer, pressed = hidden.has(name);
    if (pressed) hidden.delete(name); else hidden.add(name);
    button.setAttribute("aria-pressed", String(pressed));
    show(step);
  });
}
show(step);
