// Performance profiles over all tasks: steps that rise from the share of fastest to the share of solved tasks.
if (DATA.profiles) {
  const { tasks, largest, series } = DATA.profiles, section = document.getElementById("across");
  const svg = section.querySelector("figure.profile svg.plot"), hidden = new Set();
  let clock = "seconds";

  function drawProfiles([width, height] = [svg.clientWidth || 900, svg.clientHeight || 400]) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const x = (tau) => MARGIN.left + (right - MARGIN.left) * Math.log(tau) / Math.log(largest);
    const y = (share) => bottom - (bottom - MARGIN.top) * share;
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      node("line", { x1: MARGIN.left, x2: right, y1: y(share), y2: y(share), class: "grid" }, svg);
      node("text", { x: MARGIN.left - 8, y: y(share) + 4, "text-anchor": "end", class: "ytick" }, svg, String(100 * share));
    }
    for (const tau of [1, 1.5, 2, 3, 4]) {
      node("line", { x1: x(tau), x2: x(tau), y1: bottom, y2: bottom + 5, class: "axis" }, svg);
      node("text", { x: x(tau), y: bottom + 19, "text-anchor": "middle", class: "xtick" }, svg, String(tau));
    }
    node("line", { x1: MARGIN.left, x2: right, y1: bottom, y2: bottom, class: "axis" }, svg);
    node("text", { x: right, y: bottom + 37, "text-anchor": "end" }, svg, "τ: times the fastest's, log scale");
    node("text", { x: 2, y: 16, class: "title" }, svg, `share of ${tasks} tasks [%], ${clock === "seconds" ? "time" : "steps"} to target`);
    series.forEach((each, index) => {
      if (hidden.has(index)) return;
      const ratios = each.ratios[clock], share = (tau) => ratios.filter((r) => r <= tau).length / tasks;
      const aside = 2 * (index - (series.length - 1) / 2), height = (tau) => (y(share(tau)) + aside).toFixed(2); // equal curves stay visible
      let d = `M${x(1)} ${height(1)}`;
      for (const ratio of ratios.filter((r) => r > 1)) d += `H${x(ratio).toFixed(2)}V${height(ratio)}`;
      node("path", { d: `${d}H${x(largest)}`, class: "line", "stroke-dasharray": each.dashes }, node("g", { class: "series", style: each.colours, "data-profile": index }, svg));
    });
  }

  for (const button of section.querySelectorAll("[data-clock]")) button.addEventListener("click", () => {
    clock = button.dataset.clock;
    section.querySelectorAll("[data-clock]").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    drawProfiles();
  });
  for (const button of section.querySelectorAll("[data-profile]")) button.addEventListener("click", () => {
    const index = Number(button.dataset.profile);
    if (!hidden.delete(index)) hidden.add(index);
    button.setAttribute("aria-pressed", String(!hidden.has(index)));
    drawProfiles();
  });
  new ResizeObserver(() => drawProfiles()).observe(svg);
  addEventListener("beforeprint", () => drawProfiles([700, 300]));
  addEventListener("afterprint", () => drawProfiles());
}
