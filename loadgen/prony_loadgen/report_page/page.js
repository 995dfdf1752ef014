// Draws the figures that the page carries as JSON, in the colours of its style sheet.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);

  // "$data" in a figure is the style sheet's --data, as it is now: light, dark or on paper.
  function coloured(part, style) {
    if (typeof part === "string" && part[0] === "$") {
      return style.getPropertyValue("--" + part.slice(1)).trim();
    }
    if (Array.isArray(part)) return part.map((item) => coloured(item, style));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, coloured(v, style)]));
    }
    return part;
  }

  const axis = { gridcolor: "$grid", linecolor: "$rule", zerolinecolor: "$rule",
    tickfont: { color: "$muted", size: 11 }, title: { font: { color: "$muted", size: 12 },
    standoff: 6 }, ticks: "", automargin: false };
  const common = {
    autosize: true, paper_bgcolor: "$paper", plot_bgcolor: "$paper", dragmode: "zoom",
    font: { family: "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif",
      color: "$ink", size: 12 },
    hoverlabel: { bgcolor: "$paper", bordercolor: "$rule", font: { color: "$ink", size: 12 } },
    legend: { font: { color: "$muted", size: 11 }, bgcolor: "rgba(0,0,0,0)" },
  };

  function merged(base, over) {
    if (!base || typeof base !== "object" || Array.isArray(over)) return over === undefined ? base : over;
    if (over === undefined) return base;
    if (typeof over !== "object") return over;
    const keys = new Set([...Object.keys(base), ...Object.keys(over)]);
    return Object.fromEntries([...keys].map((key) => [key, merged(base[key], over[key])]));
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    for (const [id, figure] of Object.entries(figures)) {
      let layout = merged(common, figure.layout);
      for (const name of Object.keys(layout)) {
        if (/^[xy]axis\d*$/.test(name)) layout[name] = merged(axis, layout[name]);
      }
      Plotly.react(id, coloured(figure.data, style), coloured(layout, style),
        { responsive: false, displaylogo: false, displayModeBar: false, showTips: false });
    }
  }

  draw();
  // A plot follows its own place: the window's width, a phone that turns, the paper's width.
  const follow = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const { target, contentRect } = entry;
      if (contentRect.width > 0 && Math.abs(target._fullLayout.width - contentRect.width) > 1) {
        Plotly.Plots.resize(target);
      }
    }
  });
  for (const id of Object.keys(figures)) follow.observe(document.getElementById(id));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // Paper is laid out without telling anyone how wide it is; A4 and Letter leave at least this.
  const paper = document.documentElement.classList;
  addEventListener("beforeprint", () => {
    paper.add("paper");
    draw();
    for (const id of Object.keys(figures)) {
      Plotly.relayout(id, { width: id === "plot-timeline" ? 640 : 300 });
    }
  });
  addEventListener("afterprint", () => {
    paper.remove("paper");
    draw();
    for (const id of Object.keys(figures)) Plotly.relayout(id, { width: null, autosize: true });
  });
})();
