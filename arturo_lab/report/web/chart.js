// Curves with bands in an SVG: pure functions from data and a view (what to show, over what, in which scale) to shapes.
const MARGIN = { left: 60, right: 18, top: 34, bottom: 44 };

// Where a picture has more lines than there are dashes.
const MARKS = {
  o: (x, y) => `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`, s: (x, y) => `M${x - 3.5} ${y - 3.5}h7v7h-7z`, "^": (x, y) => `M${x} ${y - 5}l4.5 8h-9z`,
  D: (x, y) => `M${x} ${y - 5}l5 5l-5 5l-5 -5z`, v: (x, y) => `M${x} ${y + 5}l4.5 -8h-9z`, P: (x, y) => `M${x - 2} ${y - 4}h4v2h2v4h-2v2h-4v-2h-2v-4h2z`, X: (x, y) => `M${x - 4} ${y - 4}l4 3l4 -3v8l-4 -3l-4 3z`,
};

const node = (name, attributes, parent, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
};

// A value as drawn: percent for fractions. On a log scale accuracy is drawn as error, whose small values matter.
function shown(metric, view, value) {
  if (value === null || value === undefined) return null;
  const scaled = metric.percent ? 100 * value : value;
  return metric.percent && view.scale === "log" ? 100 - scaled : scaled;
}
const axisTitle = (metric, view) => metric.percent && view.scale === "log" ? metric.title.replace("accuracy", "error") : metric.title;
const say = (metric, value) => metric.percent ? value.toFixed(2) : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
// One line: its points with x, y and the band's ends; y is null where there is nothing to draw.
function points(metric, view, seconds, values, lows, highs) {
  return values.map((value, i) => {
    const y = shown(metric, view, value), ends = lows ? [shown(metric, view, lows[i]), shown(metric, view, highs[i])] : [null, null];
    const [low, high] = ends[0] === null ? [null, null] : ends.sort((a, b) => a - b); // the error turns them round
    return { i, x: view.x === "epochs" ? i + 1 : seconds[i], y, low, high };
  });
}

function lines(section, view) {
  const metric = section.metrics.find((each) => each.name === view.metric) ?? section.metrics[0];
  return section.series.map((series, index) => {
    const curve = series.curves[metric.name], several = series.drawn > 1;
    return {
      index, series, metric, visible: !view.hidden.has(index),
      mean: points(metric, view, series.seconds, curve.mean, several ? curve.low : null, several ? curve.high : null),
      runs: series.runs.map((run) => ({ run, points: points(metric, view, run.seconds, run.values[metric.name]) })),
    };
  });
}

// From the lowest to the highest of what is shown. Close-up: the first fifth of the training may leave the picture.
function extent(drawn, view, metric) {
  const seen = drawn.filter((line) => line.visible);
  const late = (all) => view.focus ? all.slice(Math.floor(all.length / 5)) : all;
  let values = seen.flatMap((line) => late(line.mean).flatMap((p) => [p.y, p.low, p.high]));
  if (view.singles) values.push(...seen.flatMap((line) => line.runs.filter((r) => r.run.status === "finished").flatMap((r) => late(r.points).map((p) => p.y))));
  if (!values.some(Number.isFinite)) values = seen.flatMap((line) => line.runs.flatMap((r) => r.points.map((p) => p.y)));
  values = values.filter((v) => v !== null && Number.isFinite(v) && (view.scale === "linear" || v > 0));
  if (!values.length) return view.scale === "log" ? [0.1, 1] : [0, 1];
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < 1e-6 * Math.max(Math.abs(low), Math.abs(high))) low = high = (low + high) / 2; // equal but for rounding
  if (view.scale === "log") return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const pad = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  const floor = low >= 0 ? 0 : -Infinity, ceiling = metric.percent ? 100 : Infinity;
  return [Math.max(low - pad, floor), Math.min(high + pad, ceiling)];
}

// Round numbers inside [low, high]: about `wanted` of them on a linear scale, 1 2 5 or powers of ten on a log scale.
function ticks(low, high, wanted, scale) {
  const found = [];
  if (scale === "log") {
    const decades = Math.log10(high / low), steps = decades < 2.2 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil(decades / 8));
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (steps.length === 1 && power % stride) continue;
      for (const step of steps) found.push(step * 10 ** power);
    }
    const inside = found.filter((v) => v >= low && v <= high);
    if (inside.length > 1) return inside;
  }
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= raw) ?? raw;
  const even = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) even.push(Number((k * step).toPrecision(12)));
  return even;
}
const tickText = (value) => value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(0).replace("e+", "e") : value.toLocaleString("en-US", { maximumSignificantDigits: 6, useGrouping: Math.abs(value) >= 1e4 });

// A path through the points, broken where there is none.
function path(all, x, y) {
  let open = false;
  return all.map((p) => {
    const here = p.y !== null && Number.isFinite(y(p.y));
    const piece = here ? `${open ? "L" : "M"}${x(p.x).toFixed(2)} ${y(p.y).toFixed(2)}` : "";
    open = here;
    return piece;
  }).join("");
}

function band(all, x, y, bottom) {
  const there = all.filter((p) => p.y !== null && p.low !== null && Number.isFinite(y(p.high)));
  if (there.length < 2) return "";
  const low = (p) => Number.isFinite(y(p.low)) ? y(p.low) : bottom; // below zero on a log scale
  const up = there.map((p) => `${x(p.x).toFixed(2)} ${y(p.high).toFixed(2)}`), down = there.map((p) => `${x(p.x).toFixed(2)} ${low(p).toFixed(2)}`).reverse();
  return `M${up.join("L")}L${down.join("L")}Z`;
}

// Draw everything, in the size the SVG has or in a given one; returns what the pointer needs: the scales and the lines.
function draw(svg, section, view, [width, height] = [svg.clientWidth || 900, svg.clientHeight || 400]) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom, drawn = lines(section, view), metric = drawn[0].metric;
  const [low, high] = extent(drawn, view, metric);
  const lengths = drawn.filter((line) => line.visible).flatMap((line) => [line.mean, ...line.runs.map((r) => r.points)]).flatMap((all) => all.map((p) => p.x));
  const first = view.x === "epochs" ? 1 : 0, last = Math.max(...lengths, first + 1e-9);
  const x = (v) => MARGIN.left + (right - MARGIN.left) * (last > first + 1e-6 ? (v - first) / (last - first) : 0.5);
  const scale = view.scale === "log" ? (v) => v > 0 ? Math.log(v) : NaN : (v) => v;
  const y = (v) => bottom - (bottom - MARGIN.top) * (scale(v) - scale(low)) / (scale(high) - scale(low));

  for (const value of ticks(low, high, 6, view.scale)) {
    node("line", { x1: MARGIN.left, x2: right, y1: y(value), y2: y(value), class: "grid" }, svg);
    node("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end", class: "ytick" }, svg, tickText(value));
  }
  for (const value of ticks(first, last, Math.max(2, Math.min(10, width / 90)), "linear").filter((v) => view.x !== "epochs" || Number.isInteger(v))) {
    node("line", { x1: x(value), x2: x(value), y1: bottom, y2: bottom + 5, class: "axis" }, svg);
    node("text", { x: x(value), y: bottom + 19, "text-anchor": "middle", class: "xtick" }, svg, tickText(value));
  }
  node("line", { x1: MARGIN.left, x2: right, y1: bottom, y2: bottom, class: "axis" }, svg);
  node("text", { x: right, y: bottom + 37, "text-anchor": "end" }, svg, view.x === "epochs" ? "epoch" : "seconds of training");
  node("text", { x: 2, y: 16, class: "title" }, svg, `${axisTitle(metric, view)}, ${view.scale} scale`);

  const drawnY = drawn.filter((line) => line.visible).flatMap((line) => line.mean.map((p) => p.y)).filter((v) => v !== null);
  const cut = drawnY.some((v) => v < low) ? `cut: the first epochs are below ${tickText(Number(low.toPrecision(3)))}` : drawnY.some((v) => v > high) ? `cut: the first epochs are above ${tickText(Number(high.toPrecision(3)))}` : "";
  if (cut) node("text", { x: MARGIN.left, y: bottom + 37, class: "cut" }, svg, cut);

  const clip = `clip-${svg.closest("figure").dataset.section}`;
  const clipPath = node("clipPath", { id: clip }, node("defs", {}, svg));
  node("rect", { x: MARGIN.left, y: MARGIN.top - 6, width: right - MARGIN.left + 8, height: bottom - MARGIN.top + 6 }, clipPath);
  const plot = node("g", { "clip-path": `url(#${clip})` }, svg);
  for (const line of drawn.filter((each) => each.visible)) {
    const group = node("g", { class: "series", style: line.series.colours, "data-series": line.index }, plot);
    node("path", { d: band(line.mean, x, y, bottom), class: "band" }, group);
    for (const { run, points: all } of line.runs) {
      if (run.status === "finished" ? view.singles : true) {
        const lost = run.status !== "finished";
        node("path", { d: path(all, x, y), class: lost ? "lost" : "single", "data-seed": run.seed }, group);
        const end = all.findLast((p) => p.y !== null && Number.isFinite(y(p.y)));
        if (lost && end) {
          const [cx, cy] = [x(end.x), Math.max(MARGIN.top, Math.min(bottom, y(end.y)))];
          const mark = run.status === "diverged" ? `M${cx - 5} ${cy - 5}l10 10m0 -10l-10 10` : `M${cx - 5} ${cy}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`;
          node("path", { d: mark, class: `end end-${run.status}` }, group);
        }
      }
    }
    node("path", { d: path(line.mean, x, y), class: "line", "stroke-dasharray": line.series.dashes }, group);
    if (line.series.marker) for (const p of line.mean.filter((each, i) => each.y !== null && i % Math.max(1, Math.floor(line.mean.length / 6)) === 0)) node("path", { d: MARKS[line.series.marker](x(p.x), y(p.y)), class: "mark" }, group);
    if (line.mean.length === 1 && line.mean[0].y !== null) node("circle", { cx: x(line.mean[0].x), cy: y(line.mean[0].y), r: 4, class: "point" }, group);
  }
  return { x, y, drawn, metric, first, last, right, bottom, width, overlay: node("g", { class: "overlay" }, svg) };
}
