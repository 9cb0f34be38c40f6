"use strict";
const $ = (id) => document.getElementById(id);
const PERIOD = 2000, MOST_ELEMENTS = 1000000, MOST_SHOWN = 400;
let data = null, shown = "", key = sessionStorage.getItem("key") || "";

function put(parent, tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return parent.appendChild(element);
}
const SVG = "http://www.w3.org/2000/svg";
function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

// -- numbers as text --------------------------------------------------------------------------
const number = (x) => (x === null || x === undefined ? "–" : x >= 100 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(2)));
const seconds = (x) => (x === null || x === undefined ? "–" : x === 0 ? "0" : x < 1e-3 ? number(x * 1e6) + " µs" : x < 1 ? number(x * 1e3) + " ms" : number(x) + " s");
const bytes = (x) => (x === null ? "–" : x === 0 ? "0" : x < 1e9 ? number(x / 1e6) + " MB" : number(x / 1e9) + " GB");
function span(x) {
  const minutes = Math.floor(x / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes % 60} min` : minutes ? `${minutes} min` : `${Math.floor(x)} s`;
}
const id = (model) => JSON.stringify([model.name, model.version]);
const label = (model) => model.name + (model.version ? ` (version ${model.version})` : "");

// -- charts -----------------------------------------------------------------------------------
const CHARTS = [
  ["Requests per second", number, [["answered", "throughput", "--c0"], ["failed", "failures", "--c4"]]],
  ["Latency", seconds, [["p50", "p50", "--c2"], ["p90", "p90", "--c1"], ["p99", "p99", "--c4"]]],
  ["Rows per batch", number, [["rows", "rows", "--c3"]]],
  ["Longest queue", number, [["requests", "queue", "--c5"]]],
  ["Memory of the server", bytes, [["memory", "memory", "--c6"]]],
];
function roundUp(x) {
  if (!(x > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= x * 0.999);
}
function path(values, x, y) {
  let text = "", pen = false;
  values.forEach((value, i) => {
    if (value === null) { pen = false; return; }
    const alone = !pen && (i + 1 === values.length || values[i + 1] === null); // a dot
    text += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}${alone ? "h0.01" : ""}`;
    pen = true;
  });
  return text;
}
function drawChart(box, [title, show, lines]) {
  box.replaceChildren();
  const bar = put(box, "div", undefined, "bar");
  put(bar, "h3", title);
  const legend = put(bar, "div", undefined, "legend");
  const width = Math.max(220, box.clientWidth || 330), height = 150, left = 54, right = width - 6, top = 8, bottom = 126;
  const series = lines.map(([name, field, colour]) => [name, field === "memory" ? data.memory_series : data.series[field], colour]);
  const most = roundUp(Math.max(0, ...series.flatMap((line) => line[1].map((v) => v ?? 0))));
  const count = Math.max(2, series[0][1].length);
  const x = (i) => left + (i / (count - 1)) * (right - left), y = (v) => bottom - (v / most) * (bottom - top);
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title, class: "curves" });
  for (const share of [0, 0.5, 1]) {
    draw(svg, "line", { x1: left, x2: right, y1: y(most * share), y2: y(most * share), class: "grid" });
    draw(svg, "text", { x: left - 7, y: y(most * share) + 4, "text-anchor": "end" }, show(most * share));
  }
  const minutes = Math.round((count * data.slot_seconds) / 60);
  draw(svg, "text", { x: left, y: bottom + 18 }, `${minutes} min ago`);
  draw(svg, "text", { x: right, y: bottom + 18, "text-anchor": "end" }, "now");
  for (const [name, values, colour] of series) {
    draw(svg, "path", { d: path(values, x, y), class: "curve" }).style.stroke = `var(${colour})`;
    const entry = put(legend, "span");
    put(entry, "i").style.background = `var(${colour})`;
    put(entry, "span", name);
  }
  hint(svg, series, show, (at) => Math.round(((at * width - left) / (right - left)) * (count - 1)));
}
function hint(svg, series, show, place) {
  const tip = $("tip");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const i = place((event.clientX - box.left) / box.width), values = series[0][1];
    if (i < 0 || i >= values.length) { tip.style.visibility = "hidden"; return; }
    tip.replaceChildren();
    put(tip, "div", `${span((values.length - i) * data.slot_seconds)} ago`);
    for (const [name, found] of series) { const row = put(tip, "div", name); put(row, "b", show(found[i])); }
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
    tip.style.visibility = "visible";
  });
  svg.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
}
function drawCharts() {
  const panels = $("panels");
  while (panels.childElementCount < CHARTS.length) put(panels, "div", undefined, "panel");
  CHARTS.forEach((chart, i) => drawChart(panels.children[i], chart));
}

// -- head, tiles and table --------------------------------------------------------------------
function setState(text, kind) { $("state").textContent = text; $("state").className = `pill ${kind}`; }
function drawHead() {
  const total = data.total, ready = data.models.filter((model) => model.state === "READY").length;
  setState(data.is_ready ? "ready" : "not ready", data.is_ready ? "ready" : "waiting");
  $("headline").textContent = total.throughput || total.failures
    ? `${number(total.throughput)} requests per second, 99 % within ${seconds(total.p99)}` : "No requests in the last minute";
  $("subline").textContent = `${ready} of ${data.models.length} model${data.models.length === 1 ? "" : "s"} ready, up for ${span(data.up_seconds)}`;
  const tiles = [
    [number(total.throughput), "requests per second"], [number(total.failures), "failures per second"],
    [seconds(total.p50), "p50"], [seconds(total.p90), "p90"], [seconds(total.p99), "p99"],
    [number(total.rows), "rows per batch"], [number(total.queue), "requests waiting"], [bytes(data.memory), "memory"],
  ];
  $("tiles").replaceChildren();
  for (const [value, what] of tiles) {
    const tile = put($("tiles"), "div", undefined, "tile");
    put(tile, "b", value);
    put(tile, "span", what);
  }
}
const COLUMNS = [
  ["req/s", (m) => number(m.throughput)], ["failed/s", (m) => number(m.failures)], ["p50", (m) => seconds(m.p50)],
  ["p90", (m) => seconds(m.p90)], ["p99", (m) => seconds(m.p99)], ["rows", (m) => number(m.rows)], ["joined", (m) => m.joined || "–"],
  ["queue", (m) => number(m.queue)],
];
function drawTable() {
  const body = $("models").tBodies[0];
  if (!$("models").tHead.rows.length) {
    const head = put($("models").tHead, "tr");
    for (const name of ["model", "version", "state"]) put(head, "th", name);
    for (const [name] of COLUMNS) put(head, "th", name, "n");
  }
  body.replaceChildren();
  for (const model of data.models) {
    const row = put(body, "tr", undefined, id(model) === shown ? "chosen" : "");
    put(put(row, "td", undefined, "name"), "button", model.name).addEventListener("click", () => choose(id(model)));
    put(row, "td", model.version);
    const state = put(put(row, "td"), "span", model.state.toLowerCase(), `pill ${model.state === "READY" ? "ready" : "lost"}`);
    state.title = model.reason;
    for (const [, show] of COLUMNS) put(row, "td", show(model), "n");
  }
}
function fillSelect(select, options, chosen) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) { // an open list stays as it is
    select.dataset.options = wanted;
    select.replaceChildren();
    for (const [value, text] of options) put(select, "option", text).value = value;
  }
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
function choose(value) { shown = value; location.hash = value ? "model=" + encodeURIComponent(JSON.parse(value)[0]) : ""; load(); }

// -- talking to the server --------------------------------------------------------------------
const headers = (more) => ({ ...more, ...(key ? { Authorization: "Bearer " + key } : {}) });
async function load() {
  const query = shown ? "?" + new URLSearchParams({ model: JSON.parse(shown)[0], version: JSON.parse(shown)[1] }) : "";
  let answer;
  try { answer = await fetch("live" + query, { headers: headers() }); } catch { setState("no connection", "lost"); return; }
  $("key-card").hidden = answer.status !== 401 && answer.status !== 403;
  if (!answer.ok) { setState(answer.status === 401 ? "key needed" : `error ${answer.status}`, "lost"); return; }
  data = await answer.json();
  const options = data.models.map((model) => [id(model), label(model)]);
  fillSelect($("shown"), [["", "all models"], ...options], shown);
  const ready = data.models.filter((model) => model.state === "READY");
  const before = $("tried").value;
  fillSelect($("tried"), ready.map((model) => [id(model), label(model)]), before || wantedModel());
  if ($("tried").value !== before) loadExample();
  drawHead(); drawCharts(); drawTable();
  document.documentElement.setAttribute("data-drawn", "yes");
}
function wantedModel() {
  const name = new URLSearchParams(location.hash.slice(1)).get("model");
  const found = data.models.find((model) => model.name === name);
  return found ? id(found) : "";
}
async function poll() {
  if (!document.hidden) await load();
  setTimeout(poll, PERIOD);
}

// -- try it -----------------------------------------------------------------------------------
let fields = [];
async function loadExample() {
  const [model, version] = JSON.parse($("tried").value || "[\"\",\"\"]");
  $("fields").replaceChildren();
  fields = [];
  $("send").disabled = true;
  if (!model) return;
  const answer = await fetch("live/example?" + new URLSearchParams({ model, version }), { headers: headers() });
  const found = await answer.json();
  if (!answer.ok) { showAnswer(found.error); return; }
  fields = found.inputs.map(addField);
  $("send").disabled = false;
}
function addField(input) {
  const row = put($("fields"), "div", undefined, "field");
  const first = put(row, "div");
  put(first, "h3", input.name);
  const sizes = input.declared.map((size, i) => (size < 0 ? input.axes[i] || "?" : size)).join(", ");
  put(first, "span", `${input.datatype} [${sizes}]`, "soft");
  const named = (text, tag) => {
    const box = put(row, "div"), control = document.createElement(tag);
    put(box, "label", text);
    control.setAttribute("aria-label", `${text} of ${input.name}`);
    return box.appendChild(control);
  };
  const shape = named(input.is_optional ? "shape; empty: not sent" : "shape", "input");
  shape.type = "text";
  shape.value = input.is_optional ? "" : input.shape.join(", ");
  const values = named("data", "textarea");
  values.value = input.elements <= 32 ? JSON.stringify(Array(input.elements).fill(input.value)) : JSON.stringify(input.value);
  return { ...input, shapeBox: shape, valueBox: values };
}
function randomValue(datatype) {
  if (datatype === "BOOL") return Math.random() < 0.5;
  if (datatype === "BYTES") return Math.random().toString(36).slice(2, 8);
  return /^(FP|BF)/.test(datatype) ? +(Math.random() * 2 - 1).toFixed(4) : Math.floor(Math.random() * 10);
}
function readField(field) {
  const words = field.shapeBox.value.split(/[\s,x×[\]]+/).filter(Boolean);
  const shape = words.map(Number), count = shape.reduce((a, b) => a * b, 1);
  if (!shape.every((size) => Number.isInteger(size) && size >= 0)) throw new Error(`the shape of ${field.name} is not a list of sizes`);
  if (count > MOST_ELEMENTS) throw new Error(`${field.name} has ${count.toLocaleString("en")} elements: too many for this form`);
  const text = field.valueBox.value.trim();
  let value = text;
  if (text !== "random") try { value = JSON.parse(text); } catch { if (field.datatype !== "BYTES") throw new Error(`the data of ${field.name} is not JSON`); }
  const tensor = { name: field.name, shape, datatype: field.datatype };
  if (text === "random") return { ...tensor, data: Array.from({ length: count }, () => randomValue(field.datatype)) };
  return { ...tensor, data: Array.isArray(value) ? value : Array(count).fill(value) };
}
function shortened(tensor) {
  const more = tensor.data && tensor.data.length > MOST_SHOWN ? `, ... ${tensor.data.length.toLocaleString("en")} in all` : "";
  const values = JSON.stringify((tensor.data || []).slice(0, MOST_SHOWN)).slice(1, -1);
  return `${tensor.name}  ${tensor.datatype} [${tensor.shape.join(", ")}]\n  ${values}${more}`;
}
function showAnswer(text) { $("answer").hidden = false; $("answer").textContent = text; }
async function send() {
  const [model, version] = JSON.parse($("tried").value);
  let body;
  try {
    const given = fields.filter((field) => !(field.is_optional && !field.shapeBox.value.trim()));
    body = { inputs: given.map(readField) };
  } catch (error) { showAnswer(error.message); return; }
  $("sent").hidden = false;
  $("body").textContent = `POST v2/models/${model}/versions/${version}/infer\n\n` + body.inputs.map(shortened).join("\n");
  const place = `v2/models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}/infer`;
  const start = performance.now();
  let answer, text;
  try {
    answer = await fetch(place, { method: "POST", body: JSON.stringify(body), headers: headers({ "Content-Type": "application/json" }) });
    text = await answer.text();
  } catch (error) { showAnswer(`no answer: ${error.message}`); return; }
  const took = `${answer.status} in ${seconds((performance.now() - start) / 1000)}`;
  let found = null;
  try { found = JSON.parse(text); } catch { /* shown as it is */ }
  const outputs = found && found.outputs ? found.outputs.map(shortened).join("\n") : (found && found.error) || text.slice(0, 4000);
  showAnswer(`${took}\n\n${outputs}`);
}

$("send").addEventListener("click", send);
$("tried").addEventListener("change", loadExample);
$("shown").addEventListener("change", () => choose($("shown").value));
function useKey() { key = $("key").value; sessionStorage.setItem("key", key); load(); }
$("key").addEventListener("change", useKey);
$("key-form").addEventListener("submit", (event) => { event.preventDefault(); useKey(); });
let timer = 0;
addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => data && drawCharts(), 120); });
poll();
