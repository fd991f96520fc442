
"use strict";
// Grades stay in this browser until they are saved as CSV; nothing is sent anywhere.
const sheet = document.body.dataset.sheet;
const articles = [...document.querySelectorAll("article")];
const grader = document.getElementById("grader");
const progress = document.getElementById("progress");

function kept() {
  try {
    return JSON.parse(localStorage.getItem(sheet)) || {};
  } catch {
    return {};
  }
}

function keep() {
  const grades = articles.map(read);
  const done = grades.filter((one) => one.grade !== "").length;
  progress.textContent = `${done} of ${articles.length}`;
  articles.forEach((article, index) => article.classList.toggle("graded", grades[index].grade !== ""));
  try {
    localStorage.setItem(sheet, JSON.stringify({ grader: grader.value, grades }));
  } catch {
    // A browser that keeps nothing for files: the CSV is then the only copy.
  }
}

function read(article) {
  const chosen = article.querySelector("input[type=radio]:checked");
  return { grade: chosen ? chosen.value : "", note: article.querySelector("input[type=text]").value };
}

function restore() {
  const { grader: name = "", grades = [] } = kept();
  grader.value = name;
  articles.forEach((article, index) => {
    const { grade = "", note = "" } = grades[index] || {};
    for (const input of article.querySelectorAll("input[type=radio]")) input.checked = input.value === grade;
    article.querySelector("input[type=text]").value = note;
  });
  keep();
}

function cell(value) {
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function toCsv() {
  const rows = articles.map((article, index) => {
    const { grade, note } = read(article);
    return [sheet, String(index + 1), grade, note, grader.value.trim()];
  });
  return [["sheet", "item", "grade", "note", "grader"], ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function save(event) {
  event.preventDefault();
  keep();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([toCsv()], { type: "text/csv" }));
  link.download = `${sheet}-${grader.value.trim().replace(/[^\p{L}\p{N}]+/gu, "-")}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function current() {
  const focused = document.activeElement.closest("article");
  if (focused) return focused;
  return articles.find((article) => article.getBoundingClientRect().bottom > window.innerHeight / 3) || articles[0];
}

function go(from, by) {
  const next = articles[articles.indexOf(from) + by];
  if (next) next.focus();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (target.matches("input[type=text]")) {
    if (event.key === "Escape" && target.closest("article")) target.closest("article").focus();
    return;
  }
  if (target.matches("button, summary")) return;
  const article = current();
  if (/^[0-9t]$/.test(event.key)) {
    const grade = event.key === "t" ? "10" : event.key;
    article.querySelector(`input[value="${grade}"]`).checked = true;
    article.focus();
    keep();
  } else if (event.key === "Enter" || event.key === "j") {
    go(article, 1);
  } else if (event.key === "k") {
    go(article, -1);
  } else if (event.key === "c") {
    article.querySelector("input[type=text]").focus();
  } else {
    return;
  }
  event.preventDefault();
}

document.addEventListener("input", keep);
document.addEventListener("keydown", press);
document.getElementById("export").addEventListener("submit", save);
restore();
