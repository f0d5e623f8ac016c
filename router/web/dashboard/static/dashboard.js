"use strict";

// All text from engines and clients is set as textContent: it never becomes markup.

const SAMPLES = 60; // a minute of history, one sample a second
const RETRY_MS = 1000; // until a connection that has ended is made anew
const SILENT_MS = 10_000; // of a connection that brings a sample a second: it is dead; as in pd-router top
const LOOK_MS = 2000; // how often the page looks whether it is silent
const SVG_HEIGHT = 16;

const histories = new Map(); // of each engine: field -> its last values
const rows = new Map(); // of each engine: its table row
let events = null; // what ends the connection
let key = ""; // of the admin listener, if it wants one
let heardAt = 0; // when the last sample came, or the connection was begun

const by = (id) => document.getElementById(id);
const keyOf = (engine) => `${engine.role} ${engine.url}`;

// Numbers. null is not known.

const some = (value, text) => (value === null || value === undefined ? "–" : text(value));
const round = (value) => some(value, (v) => v.toLocaleString("en", { maximumFractionDigits: v < 10 ? 1 : 0 }));
const percent = (value) => some(value, (v) => `${Math.round(100 * v)} %`);
const seconds = (value) => some(value, (v) => (v < 1 ? `${Math.round(1000 * v)} ms` : `${v.toFixed(1)} s`));
const times = (value) => some(value, (v) => `${v.toFixed(1)}×`);
// Of counts: shorter soon after a start of the router, longer for a first viewer of very many engines.
const span = (value) => (value > 55 && value < 75 ? "last minute" : `last ${Math.round(value)} s`);
const clock = (time) => some(time, (t) => t.slice(11, 19));

const FIELDS = {
  in_flight: (engine) => `${engine.in_flight}${engine.slots === null ? "" : ` of ${Math.round(engine.slots)}`}`,
  kv_cache_usage: (engine) => percent(engine.kv_cache_usage),
  slowdown: (engine) => times(engine.slowdown),
  tokens_per_second: (engine) => round(engine.tokens_per_second),
  ttft_p50_seconds: (engine) => seconds(engine.ttft_p50_seconds),
  ttft_p99_seconds: (engine) => seconds(engine.ttft_p99_seconds),
  prefix_hit_ratio: (engine) => percent(engine.prefix_hit_ratio),
  share: (engine) => percent(engine.share),
};

const TOTALS = [
  ["in flight", (t) => round(t.in_flight)],
  ["requests/s", (t) => round(t.requests_per_second)],
  ["tokens/s", (t) => round(t.tokens_per_second)],
  ["TTFT p50", (t) => seconds(t.ttft_p50_seconds)],
  ["TTFT p99", (t) => seconds(t.ttft_p99_seconds)],
];

// The document is changed in place, and only where it differs: focus, open details and what a screen
// reader has read stay.

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setPairs(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([term, value], place) => {
    if (!list.children[place]) {
      const pair = element("div");
      pair.append(element("dt"), element("dd"));
      list.append(pair);
    }
    const [dt, dd] = list.children[place].children;
    setText(dt, term);
    setText(dd, value);
  });
}

function setRows(table, found, nothing) {
  const body = table.tBodies[0];
  const shown = found.length ? found : [{ cells: [nothing], className: "none" }];
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach(({ cells, className = "" }, place) => {
    const row = body.rows[place] || body.insertRow();
    setClass(row, className);
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, column) => {
      const td = row.cells[column] || row.insertCell();
      const isNumber = typeof cell === "number";
      td.colSpan = className === "none" ? table.tHead.rows[0].cells.length : 1;
      setClass(td, isNumber ? "number" : "text");
      setText(td, isNumber ? Math.round(cell).toLocaleString("en") : cell);
    });
  });
}

// A pool's table.

function sectionOf(pool) {
  const id = `pool-${pool.role}`;
  if (!by(id)) {
    const section = by("pool").content.firstElementChild.cloneNode(true);
    section.id = id;
    section.querySelector(".scroll").setAttribute("aria-label", `${pool.role} engines`);
    by("pools").append(section);
  }
  return by(id);
}

function showPool(pool) {
  const section = sectionOf(pool);
  const title = section.querySelector("h2");
  if (!title.firstChild) title.append(element("span", `${pool.role[0].toUpperCase()}${pool.role.slice(1)} engines `), element("small"));
  setText(title.lastElementChild, pool.status);
  const body = section.querySelector("tbody");
  const largest = {};
  for (const field of ["in_flight", "tokens_per_second", "slowdown"]) {
    const values = pool.endpoints.flatMap((engine) => valuesOf(keyOf(engine), field));
    largest[field] = Math.max(1, ...values.filter((value) => value !== null));
  }
  pool.endpoints.forEach((engine, place) => {
    const key = keyOf(engine);
    if (!rows.has(key)) rows.set(key, by("engine").content.firstElementChild.cloneNode(true));
    const row = rows.get(key);
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
    showEngine(row, engine, largest);
  });
  while (body.children.length > pool.endpoints.length) body.lastElementChild.remove();
}

function showEngine(row, engine, largest) {
  setClass(row, engine.severity);
  setText(row.querySelector(".url"), engine.url.replace(/^https?:\/\//, ""));
  setText(row.querySelector(".status"), engine.status);
  setText(row.querySelector(".cause"), engine.cause === null ? "" : `${engine.cause}, since ${clock(engine.since)}`);
  setPairs(row.querySelector(".more"), [
    ["URL", engine.url],
    ["models", engine.models === null ? "–" : engine.models.join(", ")],
    ["version", engine.version ?? "–"],
    ["others' requests", round(engine.other_requests)],
    ["expected delay", seconds(engine.expected_delay_seconds)],
    ["last error", engine.last_error === null ? "none" : `${engine.last_error} (${clock(engine.last_error_at)})`],
  ]);
  showOrder(row.querySelector("button"), engine);
  for (const cell of row.querySelectorAll("td")) {
    const field = cell.dataset.field;
    setText(cell.firstElementChild, FIELDS[field](engine));
    const line = cell.querySelector("polyline");
    if (line) line.setAttribute("points", points(valuesOf(keyOf(engine), field), largest[field]));
  }
}

function showOrder(button, { role, url, state, is_leaving }) {
  button.hidden = key === "" || is_leaving;
  const order = state === "draining" ? "undrain" : "drain";
  Object.assign(button.dataset, { order, url, role });
  setText(button, order);
  button.setAttribute("aria-label", `${order} ${role} ${url}`);
}

// History.

function valuesOf(key, field) {
  return histories.get(key)?.[field] ?? [];
}

function remember(key, fields) {
  const kept = histories.get(key) ?? {};
  for (const [field, value] of Object.entries(fields)) {
    kept[field] = [...(kept[field] ?? []), value].slice(-SAMPLES);
  }
  histories.set(key, kept);
}

function points(values, largest) {
  const first = SAMPLES - values.length;
  return values
    .map((value, place) => (value === null ? null : [first + place, SVG_HEIGHT - 1 - (SVG_HEIGHT - 2) * (value / largest)]))
    .filter((point) => point !== null)
    .map(([x, y]) => `${x},${y.toFixed(1)}`)
    .join(" ");
}

function takeHistory({ fields, samples }) {
  histories.clear();
  for (const sample of samples) {
    for (const [key, values] of Object.entries(sample)) {
      remember(key, Object.fromEntries(fields.map((field, place) => [field, values[place]])));
    }
  }
}

// A sample.

function show(sample) {
  const engines = sample.pools.flatMap((pool) => pool.endpoints);
  const known = new Set(engines.map(keyOf));
  for (const key of [...rows.keys()]) {
    if (!known.has(key)) {
      rows.get(key).remove();
      rows.delete(key);
      histories.delete(key);
    }
  }
  for (const { role, url, in_flight, tokens_per_second, slowdown } of engines) {
    remember(keyOf({ role, url }), { in_flight, tokens_per_second, slowdown });
  }
  const { severity, troubles, text } = sample.verdict;
  const verdict = by("verdict");
  verdict.hidden = false;
  setClass(verdict, severity);
  setText(verdict, text + (sample.is_draining ? "; the router is shutting down" : ""));
  document.title = troubles ? `(${troubles}) pd-router` : "pd-router";
  setText(by("version"), sample.version);
  setText(by("updated"), `${clock(sample.time)} UTC`);
  const period = span(sample.window_seconds);
  for (const node of document.querySelectorAll(".period")) setText(node, period);
  const failed = [`failed, ${period}`, round(sample.totals.failures)];
  setPairs(by("totals"), [...TOTALS.map(([name, text]) => [name, text(sample.totals)]), failed]);
  for (const section of by("pools").querySelectorAll(".pool")) {
    if (!sample.pools.some((pool) => section.id === `pool-${pool.role}`)) section.remove(); // all have left
  }
  sample.pools.forEach(showPool);
  setRows(
    by("decisions"),
    sample.decisions.map((each) => ({ cells: [each.mode, each.reason, each.count, each.total] })),
    "No request yet",
  );
  setRows(
    by("fallbacks"),
    sample.fallbacks.map((each) => ({ cells: [each.leg, each.reason, each.count, each.total] })),
    "None since the start",
  );
  setRows(
    by("changes"),
    sample.changes.map((each) => ({
      cells: [clock(each.time), each.text],
      className: each.is_bad ? "event-bad" : "",
    })),
    "None since the start",
  );
}

// The connection. A page that nobody sees asks for nothing.

function connected(is, why = "No connection to the router; trying again") {
  setClass(by("connection"), is ? "" : "lost");
  setText(by("connection"), is ? "live" : why);
}

async function connect() {
  disconnect();
  const mine = (events = new AbortController());
  heardAt = performance.now();
  let why;
  try {
    // Not an EventSource: those cannot send a key.
    const answer = await fetch("dashboard/events", { headers: keyHeaders(), signal: mine.signal });
    if (answer.status === 401) return refused();
    if (answer.ok) await read(answer.body);
    else why = `${await messageOf(answer)} Trying again`; // too many viewers, say
  } catch {
    // The router is away, its answer broke off, or the page has ended it.
  }
  if (events !== mine) return;
  events = null;
  connected(false, why);
  setTimeout(() => document.hidden || events || connect(), RETRY_MS);
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      try {
        takeEvent(block);
      } catch (error) {
        reportError(error); // a fault of this page, not of the connection
      }
    }
  }
}

function takeEvent(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
  if (fields.event === "history") takeHistory(JSON.parse(fields.data));
  if (fields.event !== "message") return;
  heardAt = performance.now();
  connected(true);
  by("sign-in").hidden = true;
  show(JSON.parse(fields.data));
}

function disconnect() {
  if (events) events.abort();
  events = null;
}

// A peer that vanishes without a word, behind a NAT or a proxy, is no error to the browser.
function lookForSilence() {
  if (document.hidden || events === null || performance.now() - heardAt < SILENT_MS) return;
  connected(false);
  connect();
}

async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The router answered ${answer.status}.`;
  }
}

// An operator, who has the key of the admin listener. It is kept in this page's memory only.

function keyHeaders() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

function refused() {
  events = null;
  connected(false, key ? "The router does not know this key" : "The router wants an admin key");
  key = "";
  by("sign-in").hidden = false;
  by("key").focus();
}

async function order(button) {
  const { order, url, role } = button.dataset;
  let text = `${order} ${role} ${url}: no connection to the router`;
  try {
    const answer = await fetch(`admin/engines/${order}`, {
      method: "POST",
      headers: { ...keyHeaders(), "content-type": "application/json" },
      body: JSON.stringify({ url, role }),
    });
    text = `${order} ${role} ${url}: ${answer.ok ? "done" : await messageOf(answer)}`;
  } catch {
    // Said already.
  }
  by("told").hidden = false;
  setText(by("told"), text);
}

by("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  key = by("key").value;
  by("key").value = "";
  connect();
});
by("pools").addEventListener("click", (event) => event.target.matches("button") && order(event.target));

setInterval(lookForSilence, LOOK_MS);
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
connect();
