// A served page asks its server every two seconds whether there is something new, and loads itself anew if so.
{
  const status = document.getElementById("live"), folds = [...document.querySelectorAll("details")];
  if (DATA.kept) {
    (DATA.kept.open ?? []).forEach((index) => { if (folds[index]) folds[index].open = true; });
    if (DATA.kept.theme) document.documentElement.dataset.theme = DATA.kept.theme;
    requestAnimationFrame(() => scrollTo({ top: DATA.kept.top ?? 0, behavior: "instant" }));
  }
  const since = new Date();
  const keep = () => {
    const saved = Object.fromEntries(Object.entries(views).map(([index, view]) => [index, { ...view, hidden: [...view.hidden] }]));
    const open = folds.flatMap((fold, index) => fold.open ? [index] : []);
    sessionStorage.setItem("arturo-live", JSON.stringify({ views: saved, open, top: scrollY, theme: document.documentElement.dataset.theme }));
  };
  const ask = async () => {
    try {
      const answer = await fetch("signature", { cache: "no-store" });
      if ((await answer.text()) !== status.dataset.signature) { keep(); location.reload(); return; }
      status.textContent = `as of ${since.toLocaleTimeString()}, checking every two seconds`;
    } catch { status.textContent = `as of ${since.toLocaleTimeString()}; arturo watch has stopped`; }
    setTimeout(ask, 2000);
  };
  ask();
}
