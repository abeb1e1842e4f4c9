// The landscapes again, for the browser, and lines of equal loss. A test holds these formulas to the Python ones.
const LOSSES = {
  rosenbrock: (x, y) => (1 - x) ** 2 + 100 * (y - x * x) ** 2,
  beale: (x, y) => (1.5 - x + x * y) ** 2 + (2.25 - x + x * y ** 2) ** 2 + (2.625 - x + x * y ** 3) ** 2,
  "noisy-quadratic": (x, y) => {
    const c = Math.cos(Math.PI / 6), s = Math.sin(Math.PI / 6), u = x - 1, v = y + 0.5;
    return 0.5 * (20 * (c * u + s * v) ** 2 + (c * v - s * u) ** 2);
  },
};

// Lines of equal loss over window = [left, right, low, high] as one SVG path in units of the window, y up: marching squares
// on log(loss), in which the levels are equally spaced. Each cell adds the pieces of line that cross it.
function contours(loss, window, cells, lines) {
  const [left, right, low, high] = window, n = cells + 1;
  const at = (i, j) => loss(left + (right - left) * i / cells, low + (high - low) * j / cells);
  const values = Float64Array.from({ length: n * n }, (_, k) => at(k % n, Math.floor(k / n)));
  const top = values.reduce((a, b) => Math.max(a, b)), bottom = values.reduce((a, b) => Math.min(a, b));
  const first = Math.log(Math.max(bottom, 1e-3 * top)), step = (Math.log(top) - first) / (lines - 1);
  const heights = values.map((value) => (Math.log(Math.max(value, 1e-300)) - first) / step);
  const path = [];
  for (let j = 0; j < cells; j++) {
    for (let i = 0; i < cells; i++) {
      const a = heights[j * n + i], b = heights[j * n + i + 1], c = heights[(j + 1) * n + i + 1], d = heights[(j + 1) * n + i];
      const from = Math.max(Math.ceil(Math.min(a, b, c, d)), 0), to = Math.max(a, b, c, d);
      for (let level = from; level < to; level++) {
        const crossings = [];
        const edge = (p, q, x0, y0, dx, dy) => {
          if ((p < level) !== (q < level)) {
            const t = (level - p) / (q - p);
            crossings.push(`${((x0 + dx * t) / cells).toFixed(4)} ${((y0 + dy * t) / cells).toFixed(4)}`);
          }
        };
        edge(a, b, i, j, 1, 0); edge(b, c, i + 1, j, 0, 1); edge(c, d, i + 1, j + 1, -1, 0); edge(d, a, i, j + 1, 0, -1);
        for (let k = 0; k + 1 < crossings.length; k += 2) path.push(`M${crossings[k]}L${crossings[k + 1]}`);
      }
    }
  }
  return path.join("");
}
