"use strict";
(() => {
  const dialog = document.getElementById("enlarged");
  const image = document.createElement("img");
  const text = document.getElementById("enlarged-text");
  const buttons = [...document.querySelectorAll("button.zoom")];
  let place = 0;
  image.alt = "";
  text.before(image);

  const show = (number) => {
    place = (number + buttons.length) % buttons.length;
    const picture = buttons[place].querySelector("img");
    image.src = picture.src;
    image.alt = picture.alt;
    image.className = picture.className;
    const caption = buttons[place].parentElement.querySelector("span");
    text.textContent = [picture.alt, caption && caption.textContent].filter(Boolean).join(" · ");
    if (!dialog.open) dialog.showModal();
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (event.target instanceof HTMLDialogElement) event.target.close(); // a click beside what it shows
    if (!button) return;
    if (button.classList.contains("close")) button.closest("dialog").close();
    else if (button.dataset.turn) show(place + Number(button.dataset.turn));
    else if (button.classList.contains("zoom")) show(buttons.indexOf(button));
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") show(place + 1);
    if (event.key === "ArrowLeft") show(place - 1);
  });
  dialog.addEventListener("close", () => buttons[place] && buttons[place].focus());
  window.addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((part) => { part.open = true; }));
})();
