// A click on a call of a flame graph stretches it over the whole width; one on the root goes back.
for (const flame of document.querySelectorAll(".boxes.flame")) {
  const boxes = [...flame.querySelectorAll("i")];
  for (const box of boxes) {
    const left = parseFloat(box.style.left), width = parseFloat(box.style.width);
    box.addEventListener("click", () => {
      for (const other of boxes) {
        const at = parseFloat(other.dataset.l), wide = parseFloat(other.dataset.w);
        const start = Math.max(at, left), end = Math.min(at + wide, left + width);
        other.style.left = ((start - left) / width) * 100 + "%";
        other.style.width = (Math.max(0, end - start) / width) * 100 + "%";
        other.style.display = end - start > 1e-9 ? "" : "none";
        other.classList.toggle("dim", at < left - 1e-9 || at + wide > left + width + 1e-9);
      }
    });
    box.dataset.l = left;
    box.dataset.w = width;
  }
}
