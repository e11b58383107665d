"use strict";
/* The page's arithmetic. `summaries.py` and `wording.py` say the same in Python; the browser tests compare the two. */
const numbers = (() => {
  const TAIL = 0.025; // 95 %, two-sided

  function bytes(text) {
    const raw = atob(text);
    const out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i += 1) out[i] = raw.charCodeAt(i);
    return out;
  }

  /* Confidences ascending (float64, little-endian) and one bit per case: right or wrong. */
  function decode(method) {
    const confidence = new Float64Array(bytes(method.confidence).buffer);
    const packed = bytes(method.correct);
    const correct = new Uint8Array(confidence.length);
    for (let i = 0; i < correct.length; i += 1) correct[i] = (packed[i >> 3] >> (i & 7)) & 1;
    return { confidence, correct, edges: method.edges, precision: method.precision };
  }

  /* The nearest number in the precision of the scores (ties to even): a float32 0.95 meets the threshold 0.95. */
  function rounded(value, precision) {
    if (precision === "float64") return value;
    const single = Math.fround(value);
    if (precision === "float32" || single === 0) return single;
    const [bits, smallest] = precision === "float16" ? [11, -14] : [8, -126];
    const step = 2 ** (Math.max(Math.floor(Math.log2(single)), smallest) - bits + 1);
    const whole = Math.floor(single / step);
    const rest = single / step - whole;
    return (rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? whole + 1 : whole) * step;
  }

  /* Position of the first value that is `threshold` or more. */
  function firstAtLeast(sorted, threshold) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < threshold) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /* Stirling's series, after the argument was raised to at least 10. */
  function logGamma(x) {
    let shift = 0;
    while (x < 10) { shift += Math.log(x); x += 1; }
    const series = 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - 1 / (1680 * x ** 7);
    return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series - shift;
  }

  /* Regularised incomplete beta function, by its continued fraction (Lentz's method). */
  function incompleteBeta(x, a, b) {
    if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
    const front = Math.exp(
      logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x)) / a;
    let [value, c, d] = [1, 1, 0];
    for (let i = 0; i < 10000; i += 1) {
      const m = i >> 1;
      let step = 1;
      if (i % 2) step = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
      else if (i) step = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
      d = 1 / (1 + step * d);
      c = 1 + step / c;
      value *= c * d;
      if (Math.abs(1 - c * d) < 1e-14) break;
    }
    return front * (value - 1);
  }

  /* The x at which the incomplete beta function is `level`. */
  function betaQuantile(level, a, b) {
    let [low, high] = [0, 1];
    for (let i = 0; i < 60; i += 1) {
      const middle = (low + high) / 2;
      if (incompleteBeta(middle, a, b) < level) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  }

  /* Clopper and Pearson's exact interval of a share. */
  function exactInterval(right, cases) {
    if (!cases) return null;
    return [
      right === 0 ? 0 : betaQuantile(TAIL, right, cases - right + 1),
      right === cases ? 1 : betaQuantile(1 - TAIL, right + 1, cases - right),
    ];
  }

  /* What is decided alone at confidence `threshold` and above. Bins are (edge, next edge], 0 in the first. */
  function atThreshold(model, threshold) {
    const { confidence, correct, edges, precision } = model;
    const cases = confidence.length;
    const first = firstAtLeast(confidence, rounded(threshold, precision));
    const gaps = new Float64Array(edges.length - 1);
    const lastBin = gaps.length - 1;
    let right = 0;
    for (let i = first, bin = 0; i < cases; i += 1) {
      while (bin < lastBin && confidence[i] > edges[bin + 1]) bin += 1;
      gaps[bin] += confidence[i] - correct[i];
      right += correct[i];
    }
    const automated = cases - first;
    return {
      threshold, cases, automated, right,
      reviewed: first,
      share: automated / cases,
      accuracy: automated ? right / automated : null,
      interval: exactInterval(right, automated),
      ece: automated ? gaps.reduce((sum, gap) => sum + Math.abs(gap), 0) / automated : null,
    };
  }

  function cost(result, errorCost, reviewCost) {
    return (1000 * ((result.automated - result.right) * errorCost + result.reviewed * reviewCost)) / result.cases;
  }

  /* The threshold with the lowest cost among the confidences that occur; threshold null: a person sees every case. */
  function cheapest(model, errorCost, reviewCost) {
    const { confidence, correct } = model;
    const cases = confidence.length;
    let best = { threshold: null, cost: 1000 * reviewCost };
    for (let i = cases - 1, wrong = 0; i >= 0; i -= 1) {
      wrong += 1 - correct[i];
      if (i > 0 && confidence[i - 1] === confidence[i]) continue; // ties are decided together
      const price = (1000 * (wrong * errorCost + i * reviewCost)) / cases;
      if (price < best.cost) best = { threshold: confidence[i], cost: price };
    }
    return best;
  }

  /* Accuracy of the most confident share, thinned to at most `most` points for drawing. */
  function accuracyOverCoverage(model, most) {
    const { confidence, correct } = model;
    const cases = confidence.length;
    const points = [];
    for (let i = cases - 1, right = 0; i >= 0; i -= 1) {
      right += correct[i];
      if (i > 0 && confidence[i - 1] === confidence[i]) continue;
      points.push([(cases - i) / cases, right / (cases - i), confidence[i]]);
    }
    const stride = Math.max(1, Math.ceil(points.length / most));
    return points.filter((_, i) => i % stride === stride - 1 || i === points.length - 1);
  }

  const NBSP = "\u00a0";

  /* What is almost all or almost nothing gets up to four digits: one mistake in 10,000 is not "100.0 % right". */
  function percent(value, digits = 1) {
    if (value === null) return "–";
    const ends = (places) => [0, 100].includes(Number((100 * value).toFixed(places)));
    let places = digits;
    while (places < 4 && value > 0 && value < 1 && ends(places)) places += 1;
    return `${(100 * value).toFixed(places)}${NBSP}%`;
  }

  const range = (pair, digits = 1) =>
    pair === null ? "" : `[${pair.map((value) => (100 * value).toFixed(digits)).join(`,${NBSP}`)}]`;
  const perThousand = (count, cases) => Math.round((1000 * count) / cases).toLocaleString("en-US");

  /* Four decimals, or as many as show that it is below 1. */
  function confidenceText(value) {
    let digits = 4;
    while (digits < 16 && value < 1 && Number(value.toFixed(digits)) === 1) digits += 1;
    return String(Number(value.toFixed(digits)));
  }

  function headline(name, result) {
    const start = `At confidence ${confidenceText(result.threshold)} ${name}`;
    if (!result.automated) return `${start} decides no case alone: all of them go to a person.`;
    const person = result.reviewed
      ? `${perThousand(result.reviewed, result.cases)} of 1,000 cases go to a person.`
      : "no case goes to a person.";
    return `${start} decides ${percent(result.share)} of cases alone and is right in ` +
      `${percent(result.accuracy)} of them ${range(result.interval)}; ${person}`;
  }

  return { decode, rounded, atThreshold, cost, cheapest, accuracyOverCoverage, exactInterval, percent, range, perThousand,
    confidenceText, headline };
})();
