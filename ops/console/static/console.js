"use strict";
// What pages do in the browser: relative times, live updates, search, keys, copies. Each page works
// without it.

const units = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];

function ago(ms) {
  const past = Date.now() - ms, size = Math.abs(past);
  for (const [unit, name] of units) {
    if (size >= 2 * unit || unit === 1000) {
      const count = Math.round(size / unit) + "\u202f" + name;
      return past >= 0 ? count + " ago" : "in " + count;
    }
  }
}

// The time of day with milliseconds; before it the date, where that is not today's.
function clock(at) {
  const time = at.toLocaleTimeString("en-GB") + "." + String(at.getMilliseconds()).padStart(3, "0");
  if (at.toDateString() === new Date().toDateString()) return time;
  return at.toLocaleDateString("en-GB", {day: "numeric", month: "short"}) + " " + time;
}

function showTimes(root) {
  for (const time of root.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms), at = new Date(ms);
    if (Number.isNaN(at.getTime())) { time.title = time.textContent; continue; }
    const text = "clock" in time.dataset ? clock(at) : ago(ms);
    if (time.textContent !== text) time.textContent = text;
    if (!time.title) {
      time.dateTime = at.toISOString();
      time.title = at.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "long"});
    }
  }
}

// An element that has not changed stays as it is; what somebody types into keeps its text.
function replace(target, html) {
  const focused = document.activeElement;
  Idiomorph.morph(target, html, {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (old, next) => {
        if (old.nodeName !== "TIME" || old.dataset.ms !== next.dataset.ms) return true;
        return false;
      },
      // What somebody has opened stays open.
      beforeAttributeUpdated: (name, node) => name !== "open" || node.nodeName !== "DETAILS",
    },
  });
  // A row that moves takes its focus along, also where the browser forgets it.
  if (focused.isConnected && focused !== document.activeElement) focused.focus({preventScroll: true});
  showTimes(target);
  showPointed();
}

// -- live updates: one stream, closed while nobody looks ------------------------------------------

const main = document.getElementById("main"), state = document.getElementById("state");
let stream = null;
let paused = false;
let seen = "";  // when the values were new

// Values that are old look old.
function tell(text, stale = false) {
  if (state.textContent !== text) state.textContent = text;
  state.className = stale ? "stale" : "";
  main.toggleAttribute("data-stale", stale);
}

const lost = () => tell(`■ Connection to the console lost${seen && `; values of ${seen}`}. Retrying.`, true);

// A search that runs is followed in a hidden tab, too: it ends when nobody does.
const unwatched = () => document.hidden && !main.querySelector("[data-busy]");

function listen() {
  if (stream || paused || unwatched() || !main.hasAttribute("data-live")) return;
  stream = new EventSource(location.href);
  stream.onopen = () => tell("● Live");
  stream.onmessage = (event) => {
    replace(main, event.data);
    seen = new Date().toLocaleTimeString("en-GB");
    tell("● Live");
  };
  stream.addEventListener("last", () => {
    stop();
    tell("");
    main.removeAttribute("data-live");
  });
  stream.addEventListener("over", () => {
    stop();
    location.reload();
  });
  stream.onerror = () => {
    lost();
    if (stream.readyState === EventSource.CLOSED) {
      stop();
      setTimeout(listen, 5000);
    }
  };
}

function stop() {
  if (stream) stream.close();
  stream = null;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-pause]");
  if (!button) return;
  paused = !paused;
  button.textContent = paused ? "Resume" : "Pause";
  button.setAttribute("aria-pressed", String(paused));
  if (paused) { stop(); tell("Paused"); } else listen();
});

document.addEventListener("visibilitychange", () => (unwatched() ? stop() : listen()));
addEventListener("pagehide", stop);
// What the browser kept of a page may be old, and of a user who has logged out since.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// -- search: the list follows what is typed -------------------------------------------------------

let asked = null;

async function search(input) {
  const form = input.form, url = new URL(form.action);
  url.search = new URLSearchParams(new FormData(form)).toString();
  if (asked) asked.abort();
  asked = new AbortController();
  stop();  // the stream is of the list before
  try {
    const answer = await fetch(url, {signal: asked.signal});
    if (!answer.ok || answer.redirected) { location.assign(url); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    replace(main, page.getElementById("main").innerHTML);
    history.replaceState(null, "", url);
    listen();
  } catch (error) {
    if (error.name !== "AbortError") lost();
  }
}

let typed = 0;
document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-search]")) return;
  clearTimeout(typed);
  typed = setTimeout(search, 200, event.target);
});

// -- keys and copies ------------------------------------------------------------------------------

// To the link of the next row, or of the one before: Enter opens it.
function step(by) {
  const links = [...main.querySelectorAll("tbody tr, .findings li")]
    .map((row) => row.querySelector("a, summary")).filter((link) => link && link.checkVisibility());
  const row = document.activeElement.closest("tr, .findings li");
  const at = links.findIndex((link) => link.closest("tr, .findings li") === row);
  const next = links[at < 0 ? 0 : at + by];
  if (next) next.focus();
}

const keys = document.getElementById("keys");
let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.key === "/") {
    const box = document.getElementById("q");
    if (box) { event.preventDefault(); box.focus(); box.select(); }
  } else if (event.key === "?") {
    keys.showModal();
  } else if (going && event.timeStamp < going + 1500) {
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    going = 0;
    if (link) link.click();
  } else if (event.key === "g") {
    going = event.timeStamp;
  } else if (event.key === "j" || event.key === "k") {
    step(event.key === "j" ? 1 : -1);
  }
});

document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-keys]")) keys.showModal();
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {  // without TLS, browsers give no page the clipboard
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// -- charts: the values where the pointer is -----------------------------------------------------

const slots = 59, slotMs = 5000;
let pointed = null;  // a chart, and how many slots before its newest one

function showPointed() {
  if (!pointed || !pointed.figure.isConnected) return;
  const {figure, back} = pointed, lines = JSON.parse(figure.dataset.values);
  figure.querySelectorAll("figcaption b").forEach((value, k) => {
    value.textContent = lines[k].at(-1 - back) ?? "–";
  });
  figure.querySelector(".when").textContent = clock(new Date(Number(figure.dataset.end) - slotMs * back)).slice(0, -4);
}

main.addEventListener("pointermove", (event) => {
  const plot = event.target.closest(".charts svg");
  if (plot) {
    const box = plot.getBoundingClientRect(), right = box.right - event.clientX;
    pointed = {figure: plot.parentNode, back: Math.round(slots * Math.min(1, Math.max(0, right / box.width)))};
    showPointed();
  } else if (pointed) {
    pointed.back = 0;
    showPointed();
    pointed.figure.querySelector(".when").textContent = "";
    pointed = null;
  }
});

// -- selections ----------------------------------------------------------------------------------

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-check-all]")) return;
  for (const box of event.target.form.querySelectorAll("input[type=checkbox][name]"))
    box.checked = event.target.checked;
});

// -- forms: what is sent, is sent once -----------------------------------------------------------

document.addEventListener("submit", (event) => {
  const {target: form, submitter} = event;
  if (form.method === "post" && submitter) setTimeout(() => { submitter.disabled = true; });
});

// -- the hint of a way to search -----------------------------------------------------------------

document.addEventListener("change", (event) => {
  if (event.target.id !== "by") return;
  const way = event.target.selectedOptions[0].dataset;
  document.getElementById("q").placeholder = way.example;
  document.getElementById("hint").textContent = way.hint;
  const range = document.getElementById("range");
  range.hidden = range.disabled = !("searches" in way);
});

showTimes(document);
setInterval(showTimes, 1000, document);
listen();
