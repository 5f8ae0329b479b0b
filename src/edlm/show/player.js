"use strict";
const film = JSON.parse(document.getElementById("film").textContent);
const find = (id) => document.getElementById(id);
const tokens = [...document.querySelectorAll(".edlm-text .token")];
const texts = tokens.map((token) => token.textContent);
const steps = tokens.map((token) => Number(token.dataset.step));
const cursors = [...document.querySelectorAll(".cursor")];
const slider = find("slider");
let timer = null;

function show(number) {
  tokens.forEach((token, i) => {
    const isKnown = steps[i] <= number;
    token.textContent = isKnown ? texts[i] : film.mask;
    token.className = isKnown ? (steps[i] === number ? "token new" : "token") : "token mask";
  });
  find("status").textContent = film.summaries[number];
  find("candidates").innerHTML = film.candidates[number];
  cursors.forEach((line) => line.setAttribute("transform", `translate(${number * Number(line.dataset.width)})`));
  slider.value = number;
}

function stop() {
  clearInterval(timer);
  timer = null;
  find("play").textContent = "Play";
}

function play() {
  if (timer !== null) return stop();
  if (Number(slider.value) === film.summaries.length - 1) show(0);
  find("play").textContent = "Pause";
  timer = setInterval(() => {
    if (Number(slider.value) === film.summaries.length - 1) return stop();
    show(Number(slider.value) + 1);
  }, Math.max(60, Math.min(600, 8000 / film.summaries.length)));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const adapt = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", adapt);
slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
find("play").addEventListener("click", play);
adapt();
show(film.summaries.length - 1);
