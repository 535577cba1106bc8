// Guides come first, the reference after them.
var Scorer = {
  score: ([docname, , anchor, , score]) => {
    if (docname.startsWith("how-to/") || docname.startsWith("tutorial/")) return score + 20;
    if (docname.startsWith("reference/api/")) return score - 20;
    return score;
  },

  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,

  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
