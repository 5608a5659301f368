"use strict";
// Text from outside (file names, names of classes) is only ever set as text.

const byId = (name) => document.getElementById(name);
const KEYS = "123456789abcdefghijklmnopqrstuvwxy"; // 0, z and space have other uses
const tab = sessionStorage.tab || (sessionStorage.tab = [...crypto.getRandomValues(new Uint32Array(4))].join("-"));
let shown = null; // the image on the page
let busy = true;

function say(text) {
  byId("state").textContent = text;
  byId("state").hidden = !text;
}

// A request is sent until it is answered: a label that the server has not confirmed stays on this page.
async function post(path, values) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await fetch(`api/${path}`, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ tab, ...values }),
      });
      const answer = await response.json();
      if (response.ok) return answer;
      if (response.status !== 507) throw Object.assign(new Error(answer.error), { refused: true });
      say(`${answer.error} It is sent again.`);
    } catch (problem) {
      if (problem.refused) throw problem;
      say("The server does not answer. Your label is kept here and sent again; start the server if it has ended.");
    }
    await new Promise((done) => setTimeout(done, Math.min(3000, 300 * (attempt + 1))));
  }
}

async function act(path, values = {}) {
  if (busy) return;
  busy = true;
  sessionStorage.waiting = JSON.stringify([path, values]);
  let problem = "";
  let answer;
  try {
    answer = await post(path, values);
  } catch (refusal) {
    problem = refusal.message;
    answer = await post("next", {});
  }
  sessionStorage.removeItem("waiting");
  say(problem);
  show(answer);
  busy = false;
}

function show(answer) {
  shown = answer.image;
  byId("progress").max = answer.total;
  byId("progress").value = answer.done;
  byId("count").textContent = `${answer.done} of ${answer.total}`;
  byId("file").textContent = answer.file;
  byId("command").textContent = answer.command;
  byId("train").hidden = !answer.command;
  byId("picture").hidden = !shown;
  for (const button of document.querySelectorAll("#classes button, #none, #skip")) button.disabled = !shown;
  if (!shown) {
    say(answer.elsewhere ? "The images that are left are open in another tab." : "All images are labelled.");
    byId("name").textContent = "";
    byId("reason").textContent = "";
    return;
  }
  byId("picture").src = `api/image/${shown.number}`;
  byId("picture").alt = shown.name;
  byId("name").textContent = shown.name;
  byId("reason").textContent = shown.reason;
  const shares = new Map(shown.answers.map((one) => [one.name, one.probability]));
  for (const button of document.querySelectorAll("#classes button")) {
    const share = shares.get(button.dataset.name);
    button.querySelector(".share").textContent = share === undefined ? "" : `${Math.round(100 * share)} %`;
    button.classList.toggle("likely", shown.answers.length > 0 && shown.answers[0].name === button.dataset.name);
  }
}

const choose = (label) => shown && act("save", { image: shown.number, label });

function build(classes) {
  classes.forEach((name, place) => {
    const button = document.createElement("button");
    const key = document.createElement("kbd");
    const words = document.createElement("span");
    const share = document.createElement("span");
    button.type = "button";
    button.dataset.name = name;
    key.textContent = (KEYS[place] || "").toUpperCase();
    key.hidden = !KEYS[place];
    words.className = "name";
    words.textContent = name;
    share.className = "share";
    button.append(key, words, share);
    button.addEventListener("click", () => choose(name));
    byId("classes").append(button);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    const place = KEYS.indexOf(event.key.toLowerCase());
    if (event.key === "0") choose("");
    else if (event.key === " ") { event.preventDefault(); if (shown) act("skip", { image: shown.number }); }
    else if (event.key.toLowerCase() === "z" || event.key === "Backspace") act("undo");
    else if (event.key.length === 1 && place >= 0 && place < classes.length) choose(classes[place]);
  });
  byId("none").addEventListener("click", () => choose(""));
  byId("skip").addEventListener("click", () => shown && act("skip", { image: shown.number }));
  byId("undo").addEventListener("click", () => act("undo"));
}

async function start() {
  // What was under way when the page was left or reloaded comes first.
  const [path, values] = JSON.parse(sessionStorage.waiting || '["next", {}]');
  const first = await post("next", {});
  build(first.classes);
  busy = false;
  if (path === "next") { say(""); show(first); } else await act(path, values);
}

start();
