"use strict";
// Words, elements and curve panels that the pages of runs share.
const $ = (id) => document.getElementById(id);

// -- words ------------------------------------------------------------------------------------
const SHARES = /^(val_)?(accuracy|balanced_accuracy|top_?\d+.*|precision.*|recall.*|f1.*|data_wait)$/;
const words = (name) => name.replace(/^val_/, "validation ").replaceAll("_", " ");
const whole = (x) => Math.round(x).toLocaleString("en-US");
function digits(x) {
  if (typeof x !== "number") return x === null || x === undefined ? "–" : String(x);
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (size >= 1e7 || size < 1e-3) return (+x.toPrecision(3)).toExponential().replace("e+", "e");
  if (size >= 1000) return whole(x);
  return String(+x.toPrecision(4));
}
function bytes(x) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (x >= 1024 && step < 4) { x /= 1024; step += 1; }
  return (step && x < 100 ? x.toFixed(1) : x.toFixed(0)) + " " + names[step];
}
function count(x) {
  const names = ["", " k", " M", " G", " T"];
  let step = 0;
  while (x >= 1000 && step < 4) { x /= 1000; step += 1; }
  return (step && x < 100 ? x.toFixed(1) : x.toFixed(0)) + names[step];
}
function duration(x) {
  if (typeof x !== "number") return "–";
  if (x < 60) return (x < 10 ? x.toFixed(1) : x.toFixed(0)) + "s";
  const minutes = Math.floor(x / 60);
  if (minutes < 60) return `${minutes}m ${Math.floor(x % 60)}s`;
  return `${Math.floor(minutes / 60)}h ${minutes % 60}m`;
}
const percent = (x) => (100 * x).toFixed(2) + "\u00a0%";
function show(name, x) {
  if (typeof x === "number" && SHARES.test(name) && x >= 0 && x <= 1) return percent(x);
  if (typeof x === "number" && name === "memory") return bytes(x);
  return digits(x);
}
const short = (text, most) => (text.length > most ? text.slice(0, Math.max(1, most - 1)) + "…" : text);

// -- elements ---------------------------------------------------------------------------------
const SVG = "http://www.w3.org/2000/svg";
function put(parent, tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return parent.appendChild(element);
}
function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}
const tip = $("tip");
function showTip(x, y, title, rows) {
  tip.replaceChildren();
  put(tip, "div", title);
  for (const [color, label, value] of rows) {
    const line = put(tip, "div");
    if (color) put(line, "i").style.background = color;
    put(line, "span", label);
    if (value !== undefined) put(line, "b", value);
  }
  const box = tip.getBoundingClientRect();
  tip.style.left = (x + 18 + box.width > innerWidth ? Math.max(4, x - box.width - 14) : x + 16) + "px";
  tip.style.top = Math.max(4, Math.min(y - box.height / 2, innerHeight - box.height - 6)) + "px";
  tip.style.visibility = "visible";
}
const hideTip = () => { tip.style.visibility = "hidden"; };
function hint(mark, title, rows = []) {
  mark.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, title, rows));
  mark.addEventListener("pointerleave", hideTip);
}
function pressable(button, pressed, act) {
  button.setAttribute("aria-pressed", String(pressed));
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    act(now);
  });
}

// -- scales -----------------------------------------------------------------------------------
function ticks(low, high, about) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.999);
  const found = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i += 1) found.push(+(i * step).toPrecision(12));
  return found;
}
function logTicks(low, high) {
  const found = [];
  const [first, last] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
  const factors = last - first <= 1 ? [1, 2, 5] : [1];
  const every = Math.ceil((last - first + 1) / 6);
  for (let power = first; power <= last; power += every) for (const factor of factors) found.push(factor * 10 ** power);
  const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return inside.length > 1 ? inside : ticks(low, high, 4).filter((tick) => tick >= low && tick <= high);
}
function smooth(points, decay) {
  let weight = 0, total = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, null];
    weight = decay * weight + 1;
    total = decay * total + y;
    return [x, total / weight];
  });
}
function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - points[low - 1][0] <= points[low][0] - step ? points[low - 1] : points[low];
}

// -- panels of curves -------------------------------------------------------------------------
const FEW = 40; // points up to which each is a dot, and none is smoothed
const HIDDEN_FIRST = ["gradient_norm", "samples_per_second", "data_wait", "memory"];
// `runs`: [{name, columns: {column: [[step, number or null]]}}]; val_loss is drawn with loss
function makePanels(runs) {
  const titles = [...new Set(runs.flatMap((run) => Object.keys(run.columns)).map((name) => name.replace(/^val_/, "")))]
    .filter((title) => title !== "epoch" && title !== "step");
  const rank = (title) => (title === "loss" ? 0 : runs.some((run) => run.columns["val_" + title]) ? 1 : title === "learning_rate" ? 2 : 3);
  titles.sort((a, b) => rank(a) - rank(b));
  const one = runs.length === 1;
  return titles.map((title) => ({
    title,
    series: runs.flatMap((run, number) => {
      const [trained, held] = [run.columns[title], run.columns["val_" + title]];
      const made = [];
      if (trained) made.push({ label: one ? "training" : run.name, color: one ? 0 : number, points: trained,
        dashed: !one && Boolean(held), noisy: trained.length > FEW && title !== "learning_rate" });
      if (held) made.push({ label: one ? "validation" : run.name, color: one ? 1 : number, points: held });
      if (one && made.length === 1) made[0].label = "";
      return made;
    }),
  }));
}
function curvePanels(box, chips, runs, settings) {
  const panels = makePanels(runs);
  const many = panels.length > 6;
  for (const panel of panels) panel.shown = !(many && HIDDEN_FIRST.includes(panel.title));
  if (many && panels.filter((panel) => panel.shown).length % 2) { // two in a line
    const next = panels.find((panel) => !panel.shown);
    if (next) next.shown = true;
  }
  const epochs = runs.length === 1 ? runs[0].columns.epoch || [] : [];
  const color = (series) => `var(--c${series.color % 10})`;

  function drawPanel(panel, width) {
    const height = 232;
    const frame = { left: 52, right: width - 8, top: 10, bottom: height - 30 };
    const visible = panel.series.filter((each) => !each.hidden);
    const values = visible.flatMap((each) => each.points.map((point) => point[1])).filter((y) => y !== null);
    const steps = visible.flatMap((each) => [each.points[0][0], each.points[each.points.length - 1][0]]);
    const svg = draw(panel.box, "svg", { viewBox: `0 0 ${width} ${height}`, height, class: "curves", role: "img",
      tabindex: 0, "aria-label": `${words(panel.title)} over steps; arrow keys move along it` });
    if (!values.length) { draw(svg, "text", { x: frame.left, y: 40 }, visible.length ? "no finite number" : "nothing is shown"); return; }
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const log = settings.log && low > 0 && !SHARES.test(panel.title);
    let shown;
    if (log) {
      if (low === high) { low /= 2; high *= 2; }
      shown = logTicks(low, high);
    } else {
      if (low === high) { const pad = Math.abs(low) || 1; low = low < 0 ? low - pad : 0; high += low === 0 && high > 0 ? 0 : pad; }
      if (low >= 0 && low < 0.6 * high) low = 0;
      shown = ticks(low, high, 4);
      low = Math.min(low, shown[0]);
      const step = shown[1] - shown[0], above = shown[shown.length - 1];
      if (above - high > 0.4 * step) { shown.pop(); high += 0.08 * step; } else high = Math.max(high, above);
    }
    const [first, last] = [Math.min(...steps, 0), Math.max(...steps, Math.min(...steps) + 1)];
    const scale = log ? Math.log : (y) => y;
    const x = (step) => frame.left + ((step - first) / (last - first)) * (frame.right - frame.left);
    const y = (value) => frame.bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (frame.bottom - frame.top);
    for (const tick of shown) {
      draw(svg, "line", { x1: frame.left, x2: frame.right, y1: y(tick), y2: y(tick), class: "grid" });
      draw(svg, "text", { x: frame.left - 8, y: y(tick) + 4, "text-anchor": "end" }, axisText(panel.title, tick));
    }
    const marks = ticks(first, last, Math.max(2, Math.floor(width / 90))).filter((tick) => tick >= first && tick <= last);
    for (const tick of marks) draw(svg, "text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, tick >= 1e6 ? count(tick) : whole(tick));
    const path = (points) => {
      let text = "", pen = "M";
      for (const [step, value] of points) {
        if (value === null || (log && value <= 0)) { pen = "M"; continue; }
        text += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
      return text;
    };
    const drawn = visible.map((each) => {
      const smoothing = each.noisy && settings.smoothing > 0;
      const stroke = `stroke: ${color(each)}`;
      if (smoothing) draw(svg, "path", { class: "curve raw", d: path(each.points), style: stroke });
      const points = smoothing ? smooth(each.points, settings.smoothing) : each.points;
      draw(svg, "path", { class: "curve line" + (each.dashed ? " dashed" : ""), d: path(points), style: stroke, "data-points": points.length });
      if (points.length <= FEW) {
        for (const [step, value] of points) {
          if (value !== null) draw(svg, "circle", { cx: x(step), cy: y(value), r: points.length === 1 ? 4 : 2.6, style: `fill: ${color(each)}` });
        }
      }
      return { ...each, shown: points };
    });
    const best = settings.best && settings.best.column.replace(/^val_/, "") === panel.title ? settings.best : null;
    if (best && typeof best.value === "number") {
      draw(svg, "circle", { class: "best", cx: x(best.step), cy: y(best.value), r: 6 });
      const above = y(best.value) - frame.top > 24;
      const side = x(best.step) > width - 60 ? "end" : "middle";
      draw(svg, "text", { class: "ink", x: x(best.step) + (side === "end" ? 6 : 0), y: y(best.value) + (above ? -11 : 21), "text-anchor": side }, "best");
    }
    const cross = draw(svg, "g", { visibility: "hidden" });
    panel.point = (step) => {
      cross.replaceChildren();
      cross.setAttribute("visibility", "visible");
      draw(cross, "line", { class: "cross", x1: x(step), x2: x(step), y1: frame.top, y2: frame.bottom });
      const rows = [];
      for (const each of drawn) {
        const near = nearest(each.shown, step);
        const reach = each.shown.length > 1 ? (last - first) / 25 : Infinity;
        if (Math.abs(near[0] - step) > Math.max(reach, (last - first) / Math.max(1, each.shown.length - 1) * 0.6)) continue;
        if (near[1] !== null && !(log && near[1] <= 0)) draw(cross, "circle", { class: "dot", cx: x(near[0]), cy: y(near[1]), r: 4.5, style: `fill: ${color(each)}` });
        const at = near[0] === step ? "" : ` (step ${whole(near[0])})`;
        rows.push([color(each), (each.label || words(panel.title)) + at, near[1] === null ? "not finite" : show(panel.title, near[1])]);
      }
      return rows;
    };
    panel.leave = () => cross.setAttribute("visibility", "hidden");
    const all = [...new Set(visible.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
    const pointed = (step, clientX, clientY) => {
      svg.dataset.step = step;
      let rows = [];
      for (const each of panels) if (each.point) { const found = each.point(step); if (each === panel) rows = found; }
      const epoch = epochs.length ? nearest(epochs, step)[1] : null;
      showTip(clientX, clientY, `step ${whole(step)}` + (epoch === null ? "" : `, epoch ${digits(epoch)}`), rows);
    };
    const left = () => { hideTip(); for (const each of panels) if (each.leave) each.leave(); };
    svg.addEventListener("pointermove", (event) => {
      const rect = svg.getBoundingClientRect();
      const at = ((event.clientX - rect.left) * (width / rect.width) - frame.left) / (frame.right - frame.left);
      const step = nearest(all.map((each) => [each]), first + Math.min(1, Math.max(0, at)) * (last - first))[0];
      pointed(step, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", left);
    svg.addEventListener("blur", left);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const now = svg.dataset.step === undefined ? (move > 0 ? -1 : all.length) : all.indexOf(+svg.dataset.step);
      const step = all[Math.min(all.length - 1, Math.max(0, now + move))];
      const rect = svg.getBoundingClientRect();
      pointed(step, rect.left + x(step) * (rect.width / width), rect.top + rect.height / 2);
    });
  }
  function axisText(title, tick) {
    if (SHARES.test(title) && Math.abs(tick) <= 1) return +(100 * tick).toFixed(2) + "%";
    if (title === "memory") return bytes(tick);
    return Math.abs(tick) >= 1e4 ? count(tick) : digits(tick);
  }
  function redraw() {
    box.replaceChildren();
    for (const panel of panels) {
      panel.point = panel.leave = null;
      if (!panel.shown) continue;
      panel.box = put(box, "div", undefined, "panel");
      panel.box.dataset.panel = panel.title;
      const bar = put(panel.box, "div", undefined, "bar");
      put(bar, "h3", words(panel.title));
      const legend = put(bar, "div", undefined, "legend");
      if (panel.series.some((each) => each.dashed)) legend.append("dashed: training, solid: validation");
      if (runs.length === 1) {
        for (const each of panel.series) {
          if (!each.label) continue;
          const entry = put(legend, "span");
          put(entry, "i").style.background = color(each);
          entry.append(each.label);
        }
      }
    }
    for (const panel of panels) if (panel.shown) drawPanel(panel, Math.max(250, panel.box.clientWidth));
  }
  if (panels.length > 2) {
    for (const panel of panels) pressable(put(chips, "button", words(panel.title)), panel.shown, (now) => { panel.shown = now; redraw(); });
  }
  redraw();
  return { redraw, panels };
}
// The switches above the panels, which both pages have: #log, #smoothing.
function bindSwitches(view, settings) {
  pressable($("log"), false, (now) => { settings.log = now; view.redraw(); });
  const noisy = view.panels.some((panel) => panel.series.some((each) => each.noisy));
  $("smoothing").parentElement.hidden = !noisy;
  $("smoothing").addEventListener("input", () => { settings.smoothing = +$("smoothing").value; view.redraw(); });
  let drawn = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; view.redraw(); } });
}
