// A live page that loads itself anew comes back as it was: views, open parts and place. Nothing is kept elsewhere.
DATA.kept = null;
try {
  DATA.kept = JSON.parse(sessionStorage.getItem("arturo-live"));
  sessionStorage.removeItem("arturo-live");
} catch { /* a browser that keeps nothing: the page starts afresh */ }
