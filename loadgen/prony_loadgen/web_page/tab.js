// The tab "LLM latency" of Locust's web UI: asks /prony/live each second and draws it as SVG.
// Locust's page is React's; this keeps to one element of its own below the tabs.
(() => {
  "use strict";
  const TITLE = "LLM latency";
  const LINES = [["p50", "#2a9d8f"], ["p90", "#e9a23b"], ["p99", "#d1495b"]];
  const NS = "http://www.w3.org/2000/svg";
  const W = 520, H = 190, L = 58, R = 12, T = 12, B = 26;

  const chosen = () => {
    const tab = document.querySelector('[role="tab"][aria-selected="true"]');
    return tab && tab.textContent.trim() === TITLE ? tab : null;
  };
  const dark = () => {
    const [r, g, b] = (getComputedStyle(document.body).backgroundColor.match(/\d+/g) || [255, 255, 255]).map(Number);
    return r + g + b < 384;
  };
  const make = (name, facts, parent, text) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, style, parent, text) => {
    const node = document.createElement(name);
    node.style.cssText = style;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const duration = (s) => s === null || s === undefined ? "–"
    : s < 0.1 ? `${(s * 1000).toFixed(1)} ms` : s < 10 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(1)} s`;
  const plain = (n) => n === null || n === undefined ? "–"
    : n >= 1000 ? Math.round(n).toLocaleString("en") : n >= 10 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
  const nice = (most) => {
    const power = 10 ** Math.floor(Math.log10(most));
    return [1, 2, 2.5, 5, 10].find((step) => step * power >= most) * power;
  };

  function chart(parent, title, points, lines, show) {
    const ink = dark() ? "#ddd" : "#333", grid = dark() ? "#444" : "#ddd";
    const box = html("figure", "margin:0", parent);
    const last = points[points.length - 1];
    const head = html("figcaption", "font:600 13px sans-serif;margin:0 0 4px;display:flex;gap:10px;align-items:baseline;white-space:nowrap;overflow:hidden", box);
    html("span", "", head, title);
    for (const [name, colour, value] of lines) {
      const key = html("span", `font-weight:400;color:${colour}`, head);
      key.textContent = `${name ? `${name} ` : ""}${show(last ? value(last) : null)}`;
    }
    const svg = make("svg", {viewBox: `0 0 ${W} ${H}`, width: "100%", role: "img", "aria-label": title}, null);
    box.appendChild(svg);
    const values = points.flatMap((p) => lines.map(([, , value]) => value(p))).filter((v) => v !== null && v !== undefined);
    const top = values.length && Math.max(...values) > 0 ? nice(Math.max(...values) * 1.02) : 1;
    const from = points.length ? points[0].at : 0, to = points.length ? Math.max(last.at, from + 10) : 10;
    const x = (at) => L + (at - from) / (to - from) * (W - L - R);
    const y = (v) => H - B - v / top * (H - T - B);
    for (let i = 0; i <= 4; i++) {
      const v = top * i / 4;
      make("line", {x1: L, x2: W - R, y1: y(v), y2: y(v), stroke: grid}, svg);
      make("text", {x: L - 6, y: y(v) + 4, "text-anchor": "end", "font-size": 11, fill: ink}, svg, show(v));
    }
    for (let i = 0; i <= 4; i++) {
      const at = from + (to - from) * i / 4;
      make("text", {x: x(at), y: H - 8, "text-anchor": i === 4 ? "end" : "middle", "font-size": 11, fill: ink}, svg, `${Math.round(at)} s`);
    }
    for (const [, colour, value] of lines) {
      let path = "", pen = false;
      for (const p of points) {
        const v = value(p);
        if (v === null || v === undefined) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${x(p.at).toFixed(1)} ${y(v).toFixed(1)}`;
        pen = true;
      }
      if (path) make("path", {d: path, fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round", "stroke-linecap": "round"}, svg);
    }
  }

  function verdict(panel, run) {
    const tones = {pass: "#2a9d8f", breach: "#d1495b", invalid: "#d1495b", inconclusive: "#e9a23b"};
    const word = run.over ? (run.verdict || "no SLO was given").toUpperCase() : run.run ? "running" : "no run yet";
    const line = html("div", "display:flex;gap:18px;flex-wrap:wrap;align-items:baseline;margin:0 0 12px", panel);
    html("strong", `font-size:18px;color:${run.over ? tones[run.verdict] || "inherit" : "inherit"}`, line, word);
    if (!run.run) return;
    html("span", "", line, `${run.scenario} at ${run.target}, ${run.model}, ${run.loop} loop`);
    html("span", "", line, `${run.finished.toLocaleString("en")} finished, ${run.failed.toLocaleString("en")} failed`);
    if (run.over && run.folder) html("span", "", line, `report: ${run.folder}/report.html`);
    if (!run.objectives.length) return;
    const table = html("table", "border-collapse:collapse;margin:0 0 16px;font-size:14px", panel);
    for (const each of run.objectives) {
      const row = html("tr", "", table);
      const cell = (text, colour) => html("td", `padding:2px 18px 2px 0;color:${colour || "inherit"}`, row, text);
      cell(each.id);
      cell(each.promise);
      cell(each.now, tones[each.tone]);
    }
    html("caption", "caption-side:bottom;text-align:left;opacity:.7;padding-top:4px", table,
      "so far, warm-up among it; the verdict is given at the end, from every request");
  }

  function draw(run) {
    const tab = chosen();
    let panel = document.getElementById("prony-tab");
    if (!tab) { if (panel) panel.remove(); return; }
    const home = tab.closest(".MuiContainer-root") || document.getElementById("root");
    if (!panel || panel.parentNode !== home) {
      if (panel) panel.remove();
      panel = html("section", "padding:0 4px 32px;font-family:sans-serif", home);
      panel.id = "prony-tab";
    }
    panel.replaceChildren();
    verdict(panel, run);
    if (!run.run) return;
    const grid = html("div", "display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:18px 28px", panel);
    const points = run.points;
    const percentiles = (key) => LINES.map(([name, colour], i) => [name, colour, (p) => p[key] && p[key][i]]);
    const one = (key, colour) => [["", colour, (p) => p[key]]];
    chart(grid, "Time to first token", points, percentiles("ttft"), duration);
    chart(grid, "Time per output token", points, percentiles("tpot"), duration);
    chart(grid, "End to end", points, percentiles("e2e"), duration);
    chart(grid, "Output tokens a second", points, one("tokens_per_s", "#3a6ea5"), plain);
    chart(grid, "In flight", points, one("in_flight", "#7b5ea7"), plain);
    chart(grid, "Requests a second", points, [
      ["finished", "#3a6ea5", (p) => p.requests_per_s], ["failed", "#d1495b", (p) => p.errors_per_s]], plain);
    html("p", "opacity:.7;font-size:13px;margin:14px 0 0", panel,
      "Each point is of the last five seconds, within 1 %. Latencies are of requests that succeeded, from when the schedule meant them to be sent.");
  }

  let latest = {run: null, over: false};
  async function ask() {
    try {
      if (chosen()) latest = await (await fetch("./prony/live")).json();
    } catch (error) { /* the run's process has ended: what it last said stays */ }
    draw(latest);
  }
  setInterval(ask, 1000);
  document.addEventListener("click", () => setTimeout(ask, 50));
  ask();
})();
