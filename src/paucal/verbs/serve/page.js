"use strict";
// Text from outside (file names, names of classes) is only ever set as text.

const byId = (name) => document.getElementById(name);
const percent = (share) =>
  share > 0 && share < 0.01 ? "<1 %" : share < 1 && share > 0.99 ? ">99 %" : `${Math.round(100 * share)} %`;

async function ask(file, explain) {
  const query = new URLSearchParams({ name: file.name || "picture", explain: explain ? "1" : "0" });
  let response;
  for (let attempt = 0; attempt < 20; attempt += 1) {
    response = await fetch(`api/classify?${query}`, {
      method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" },
    });
    if (response.status !== 503) break;
    await new Promise((done) => setTimeout(done, 500));
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `status ${response.status}`);
  return answer;
}

function headline(answer) {
  if (answer.says) return answer.says;
  const chosen = answer.classes.filter((one) => one.chosen).map((one) => one.name);
  if (chosen.length) return chosen.join(", ");
  return "none of the classes";
}

function fill(part, answer) {
  part.querySelector(".headline").textContent = headline(answer);
  const rows = part.querySelector("tbody");
  part.querySelector("table").hidden = !answer.classes.length;
  for (const one of answer.classes) {
    const row = rows.insertRow();
    row.className = one.chosen ? "chosen" : "";
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = one.name;
    const meter = document.createElement("meter");
    meter.value = one.probability;
    meter.setAttribute("aria-hidden", "true");
    const share = document.createElement("td");
    share.className = "number";
    share.textContent = percent(one.probability);
    row.append(name);
    row.insertCell().append(meter);
    row.append(share);
  }
  const doubts = answer.note ? [answer.note] : [];
  if (answer.unlike.known && answer.unlike.unlike) {
    doubts.push("Not like the training images: it is further from them than " +
      `${Math.round(100 * answer.unlike.inside)} of 100 pictures of their kind. The answer may mean nothing.`);
  }
  if (doubts.length) {
    const note = part.querySelector(".unlike");
    note.textContent = doubts.join(" ");
    note.hidden = false;
  }
}

function complain(part, problem) {
  const note = part.querySelector(".problem");
  note.textContent = problem.message;
  note.hidden = false;
}

async function explain(part, file) {
  const button = part.querySelector(".why");
  button.disabled = true;
  button.textContent = "drawing…";
  try {
    const { explanation, target } = await ask(file, true);
    if (!explanation.maps.length) throw new Error(explanation.why);
    const place = part.querySelector(".explained");
    place.querySelector("p").textContent =
      `Bright: ${target ? "what raised the number" : "what spoke for the class, on one scale for both"}. ` +
      `Method: ${explanation.why}`;
    for (const one of explanation.maps) {
      const figure = document.createElement("figure");
      const picture = document.createElement("img");
      const caption = document.createElement("figcaption");
      picture.src = one.picture;
      picture.alt = `where the picture speaks for ${one.name}`;
      caption.textContent = one.probability === null ? one.name : `${one.name}, ${percent(one.probability)}`;
      figure.append(picture, caption);
      place.querySelector(".maps").append(figure);
    }
    place.hidden = false;
    button.hidden = true;
  } catch (problem) {
    complain(part, problem);
    button.hidden = true;
  }
}

async function show(file) {
  const part = byId("answer").content.firstElementChild.cloneNode(true);
  const shown = part.querySelector(".shown");
  shown.src = URL.createObjectURL(file);
  shown.alt = file.name || "the pasted picture";
  shown.addEventListener("error", () => { shown.hidden = true; });
  part.querySelector(".why").addEventListener("click", () => explain(part, file));
  part.querySelector(".headline").textContent = "…";
  byId("answers").prepend(part);
  try {
    fill(part, await ask(file, false));
  } catch (problem) {
    part.querySelector(".headline").textContent = file.name || "the picture";
    part.querySelector("table").hidden = true;
    part.querySelector(".why").hidden = true;
    complain(part, problem);
  }
}

async function showAll(files) {
  const state = byId("state");
  let number = 0;
  for (const file of files) {
    number += 1;
    state.textContent = files.length > 1 ? `picture ${number} of ${files.length}` : "looking…";
    await show(file);
  }
  state.textContent = files.length === 1 ? "1 picture looked at" : `${files.length} pictures looked at`;
}

const drop = byId("drop");
byId("files").addEventListener("change", (event) => {
  const files = [...event.target.files];
  event.target.value = "";
  showAll(files);
});
for (const name of ["dragover", "dragenter"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
document.addEventListener("dragleave", () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  showAll([...event.dataTransfer.files]);
});
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) showAll(files);
});

byId("call").textContent =
  `curl -H 'Content-Type: application/octet-stream' --data-binary @photo.jpg '${location.origin}/api/classify?explain=0'`;
fetch("api/model").then((response) => response.json()).then((model) => {
  byId("about").textContent = model.title;
  document.title = model.title;
});
