// Draws the charts of a report from the JSON beside it. Text goes in through textContent alone.
"use strict";
(() => {
  const jobs = JSON.parse(document.getElementById("data").textContent);
  const SVG = document.getElementById("ns").namespaceURI;
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  function html(name, parent, text, css) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (css) node.className = css;
    if (parent) parent.append(node);
    return node;
  }

  function svg(name, attributes, parent, text) {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  function size(bytes) {
    let unit = 0;
    while (Math.abs(bytes) >= 1023.5 && unit < UNITS.length - 1) { bytes /= 1024; unit++; }
    return bytes.toFixed(unit === 0 ? 0 : bytes < 100 ? 2 : 1) + " " + UNITS[unit];
  }

  function micros(value) {
    if (value >= 1e6) return (value / 1e6).toFixed(2) + " s";
    if (value >= 1e3) return (value / 1e3).toFixed(1) + " ms";
    return value.toFixed(0) + " us";
  }

  const count = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 });
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // The last index whose value is <= wanted in a rising list; 0 if there is none.
  function before(list, wanted) {
    let low = 0, high = list.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle] <= wanted) low = middle; else high = middle;
    }
    return low;
  }

  // About `most` round values from base to top; of bytes, in a binary unit.
  function ticks(top, most, bytes, base) {
    let unit = 1;
    if (bytes) while (top / unit >= 1024) unit *= 1024;
    const raw = (top - base) / unit / most, power = Math.pow(10, Math.floor(Math.log10(raw || 1)));
    const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power * unit;
    const found = [];
    for (let at = Math.ceil(base / step); at * step <= top + step / 1000; at++) found.push(at * step);
    return found;
  }

  function tickText(value, top, bytes, text) {
    if (!bytes) return text(value);
    let unit = 0;
    while (top >= 1024 && unit < UNITS.length - 1) { top /= 1024; value /= 1024; unit++; }
    return +value.toFixed(3) + " " + UNITS[unit];
  }

  function showTip(at, rows) {
    tip.replaceChildren();
    for (const [name, value, paint] of rows) {
      const row = html("div", tip), label = html("span", row);
      if (paint) html("i", label, undefined, "swatch").style.background = paint;
      label.append(name);
      html("b", row, value);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), right = document.documentElement.clientWidth;
    const left = at.clientX + 16 + box.width > right ? at.clientX - box.width - 12 : at.clientX + 16;
    tip.style.left = Math.max(left, 4) + scrollX + "px";
    tip.style.top = Math.max(at.clientY - box.height - 8, 4) + scrollY + "px";
  }
  const hideTip = () => { tip.hidden = true; };

  function stairs(xs, ys, end, x, y) {
    let path = "";
    for (let i = 0; i < xs.length; i++) {
      path += (i ? "V" + y(ys[i]) : "M" + x(xs[i]) + "," + y(ys[i]));
      path += "H" + x(i + 1 < xs.length ? xs[i + 1] : end);
    }
    return path;
  }

  function redraws(figure, draw) {
    let width = figure.clientWidth;
    draw();
    // In the next frame: drawing changes the height, which an observer must not do while it runs.
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (figure.clientWidth !== width) { width = figure.clientWidth; draw(); }
    })).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    document.addEventListener("theme", draw);
  }

  // Where an axis begins: at 0, unless the values differ by less than half of the largest. It shows a
  // thousandth of that at least, so that labels differ.
  function baseOf(values) {
    let low = Infinity, high = 0;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    return low > high / 2 && low < high ? low - Math.max((high - low) / 4, high / 1000) : 0;
  }

  function frame(figure, height, top, bytes, text, base = 0) {
    figure.querySelector(":scope > svg")?.remove();
    const width = Math.max(figure.clientWidth, 260), right = 14, foot = 34, head = 16;
    const marks = ticks(top, height / 55, bytes, base).map((at) => [at, tickText(at, top, bytes, text)]);
    const left = 14 + 7 * Math.max(...marks.map((each) => each[1].length), 6);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img" }, figure);
    const y = (value) => +(height - foot - ((value - base) / (top - base || 1)) * (height - foot - head)).toFixed(1);
    for (const [at, label] of marks) {
      svg("line", { x1: left, x2: width - right, y1: y(at), y2: y(at), class: "grid" }, root);
      svg("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, root, label);
    }
    if (base) svg("text", { x: 4, y: height - 4, class: "base" }, root, "axis starts at " + (bytes ? size(base) : text(base)));
    return { root, y, left, right: width - right, head, foot: height - foot, width, height };
  }

  // Labels that would run into the one before are left out.
  function labels(chart, marks, y) {
    let free = -Infinity;
    for (const [at, text] of marks) {
      const half = text.length * 3.4;
      if (at - half < Math.max(free, 0) || at + half > chart.width) continue;
      svg("text", { x: at, y, "text-anchor": "middle" }, chart.root, text);
      free = at + half + 16;
    }
  }

  function stepAt(job, event) {
    if (!job.steps.length) return "-";
    const found = job.steps[before(job.steps.map((each) => each[1]), event)];
    return found[0];
  }

  function timeline(figure, job) {
    // A bound hugs what is live: it is there to be switched on.
    const shown = new Set(job.policies.keys());
    job.policies.forEach((policy, index) => { if (policy.bound) shown.delete(index); });
    let from = 0, to = job.events, drag = null, chart = null, x = null;
    const legend = html("div", figure, undefined, "legend");
    job.policies.forEach((policy, index) => {
      const button = html("button", legend);
      button.type = "button";
      html("i", button, undefined, "swatch").style.background = policy.colour;
      button.append(policy.name + (policy.oom === null ? "" : " (out of memory)"));
      button.setAttribute("aria-pressed", String(shown.has(index)));
      button.addEventListener("click", () => {
        if (!shown.delete(index)) shown.add(index);
        button.setAttribute("aria-pressed", String(shown.has(index)));
        draw();
      });
    });
    const key = html("span", legend, undefined, "key");
    html("i", key).style.background = "var(--area)";
    key.append("live (as requested)");
    const reset = html("button", legend, "whole job");
    reset.type = "button";
    reset.addEventListener("click", () => { from = 0; to = job.events; draw(); });

    function draw() {
      reset.hidden = from === 0 && to === job.events;
      const visible = job.policies.filter((_, index) => shown.has(index));
      const inRange = (at, values, end) => values.filter((_, i) => at[i] <= to && (i + 1 < at.length ? at[i + 1] : end) > from);
      const values = [inRange(job.live[0], job.live[1], job.events), ...visible.map((each) => inRange(each.event, each.physical, each.events))].flat();
      const base = baseOf(values), most = Math.max(0, ...values), air = (most - base) / 20 || 1;
      // A capacity far above all that is held would press the curves flat: it is told instead.
      const near = job.capacity && job.capacity <= most + 5 * air;
      const top = (near ? Math.max(most, job.capacity) : most) + air;
      chart = frame(figure, 360, top, true, undefined, base);
      const { root, y, left, right, head, foot } = chart;
      x = (event) => +(left + ((event - from) / (to - from || 1)) * (right - left)).toFixed(1);
      // An inner svg clips what a zoom leaves outside.
      const inside = svg("svg", { x: left, y: 0, width: right - left, height: chart.height, viewBox: `${left} 0 ${right - left} ${chart.height}` }, root);
      const area = stairs(job.live[0], job.live[1], job.events, x, y);
      svg("path", { d: `${area}V${y(base)}H${x(0)}Z`, fill: "var(--area)" }, inside);
      const marks = [];
      const inView = job.steps.filter((each) => each[1] >= from && each[1] <= to);
      for (const [step, event] of inView.length > 250 ? [] : inView) {
        marks.push([x(event), step]);
        svg("line", { x1: x(event), x2: x(event), y1: head, y2: foot, class: "step" }, inside);
      }
      if (marks.length > 1 && marks[1][0] - marks[0][0] < 50) marks.shift();  // set-up is short
      labels(chart, marks, foot + 15);
      svg("text", { x: right, y: foot + 30, "text-anchor": "end" }, root, `events ${count(from)} to ${count(to)}`);
      if (job.capacity && !near) {
        svg("text", { x: right, y: 11, "text-anchor": "end" }, root, `capacity ${size(job.capacity)}, above the chart`);
      } else if (job.capacity) {
        svg("line", { x1: left, x2: right, y1: y(job.capacity), y2: y(job.capacity), class: "limit" }, root);
        svg("text", { x: right, y: y(job.capacity) - 5, "text-anchor": "end" }, root, "capacity " + size(job.capacity));
      }
      visible.forEach((policy, index) => {
        const wide = 3.2 - (2 * index) / Math.max(visible.length - 1, 1);
        const d = stairs(policy.event, policy.physical, policy.events, x, y);
        svg("path", { d, fill: "none", stroke: policy.colour, "stroke-width": wide }, inside);
        if (policy.oom !== null) {
          const at = [x(policy.oom), y(policy.physical[policy.physical.length - 1] || 0)];
          svg("path", { d: `M${at[0] - 6},${at[1] - 6}l12,12m0,-12l-12,12`, stroke: policy.colour, "stroke-width": 3.5 }, inside);
        }
      });
      root.addEventListener("pointermove", hover);
      root.addEventListener("pointerleave", () => { hideTip(); root.querySelector(".cross")?.remove(); });
      root.addEventListener("pointerdown", (at) => { drag = eventAt(at); root.setPointerCapture(at.pointerId); });
      root.addEventListener("pointerup", (at) => {
        const other = eventAt(at), start = drag;
        drag = null;
        if (start !== null && Math.abs(x(other) - x(start)) > 8) {
          [from, to] = [Math.min(start, other), Math.max(start, other)];
        }
        draw();
      });
      root.addEventListener("dblclick", () => { from = 0; to = job.events; draw(); });
    }

    function eventAt(at) {
      const box = chart.root.getBoundingClientRect();
      const share = ((at.clientX - box.left) * (chart.width / box.width) - chart.left) / (chart.right - chart.left);
      return Math.round(from + Math.min(Math.max(share, 0), 1) * (to - from));
    }

    function hover(at) {
      const event = eventAt(at);
      chart.root.querySelector(".cross")?.remove();
      chart.root.querySelector(".brush")?.remove();
      svg("line", { x1: x(event), x2: x(event), y1: chart.head, y2: chart.foot, class: "cross" }, chart.root);
      if (drag !== null) {
        const [a, b] = [Math.min(x(drag), x(event)), Math.max(x(drag), x(event))];
        svg("rect", { x: a, width: b - a, y: chart.head, height: chart.foot - chart.head, class: "brush" }, chart.root);
      }
      const live = job.live[1][before(job.live[0], event)];
      const rows = [["event", count(event)], ["in", stepAt(job, event)], ["live", size(live), "var(--area)"]];
      job.policies.forEach((policy, index) => {
        if (!shown.has(index)) return;
        const over = event >= policy.events;
        const held = policy.physical[before(policy.event, event)] || 0;
        rows.push([policy.name, over ? "out of memory" : size(held), policy.colour]);
      });
      showTip(at, rows);
    }
    redraws(figure, draw);
  }

  const METRICS = [
    ["driver time", "us", micros, "modelled driver time of each step"],
    ["driver calls", "calls", count, "memory-management driver calls of each step"],
    ["stream waits", "waits", count, "stream waits of each step"],
    ["peak live memory", "live", size, "most bytes live within each step"],
  ];

  function steps(figure, job) {
    let metric = METRICS[0], logarithmic = false;
    const legend = html("div", figure, undefined, "legend choice");
    const buttons = METRICS.map((each) => {
      const button = html("button", legend, each[0]);
      button.type = "button";
      button.addEventListener("click", () => { metric = each; draw(); });
      return button;
    });
    const scale = html("button", legend, "log scale");
    scale.type = "button";
    scale.addEventListener("click", () => { logarithmic = !logarithmic; draw(); });
    const swatches = html("p", figure, undefined, "key");

    function draw() {
      buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(METRICS[index] === metric)));
      scale.setAttribute("aria-pressed", String(logarithmic));
      const [, key, text] = metric, bytes = key === "live";
      const rows = bytes
        ? [{ name: "live", colour: "var(--live)", step: job.peaks.step, values: job.peaks.live }]
        : job.policies.filter((each) => !each.bound).map((each) => ({ name: each.name, colour: each.colour, step: each.step, values: each[key] }));
      swatches.replaceChildren();
      for (const row of rows) {
        html("i", swatches).style.background = row.colour;
        swatches.append(row.name + " ");
      }
      const bend = (value) => (logarithmic ? Math.log10(1 + value) : value);
      const shown = rows.flatMap((row) => row.values.map(bend));
      const base = baseOf(shown), most = Math.max(0, ...shown), top = most + (most - base) / 20 || 1;
      const chart = frame(figure, 260, top, bytes && !logarithmic, (at) => text(logarithmic ? Math.pow(10, at) - 1 : at), base);
      const all = job.peaks.step, last = Math.max(all.length - 1, 1);
      const place = new Map(all.map((step, index) => [step, index]));
      const x = (index) => +(chart.left + 8 + (index / last) * (chart.right - chart.left - 16)).toFixed(1);
      labels(chart, all.map((step, index) => [x(index), step]), chart.foot + 15);
      svg("text", { x: chart.right, y: chart.foot + 30, "text-anchor": "end" }, chart.root, "step: " + metric[3] + (job.peaks.every > 1 ? `, one in ${job.peaks.every}` : ""));
      for (const row of rows) {
        const points = row.values.map((value, index) => [x(place.get(row.step[index])), chart.y(bend(value))]);
        svg("path", { d: points.map((at, index) => (index ? "L" : "M") + at).join(""), fill: "none", stroke: row.colour, "stroke-width": 2 }, chart.root);
        if (points.length <= 80) for (const [cx, cy] of points) svg("circle", { cx, cy, r: 3, fill: row.colour }, chart.root);
      }
      chart.root.addEventListener("pointerleave", hideTip);
      chart.root.addEventListener("pointermove", (at) => {
        const box = chart.root.getBoundingClientRect();
        const share = ((at.clientX - box.left) * (chart.width / box.width) - chart.left - 8) / (chart.right - chart.left - 16);
        const step = all[Math.round(Math.min(Math.max(share, 0), 1) * (all.length - 1))];
        showTip(at, [["step", step], ...rows.map((row) => {
          const index = row.step.indexOf(step);
          return [row.name, index < 0 ? "not completed" : text(row.values[index]), row.colour];
        })]);
      });
    }
    redraws(figure, draw);
  }

  const STATES = ["free", "live", "freed, work pending", "small blocks"];

  // A tape's pieces as {at, size, state, live, pending, segment} in bytes.
  function pieces(tape, unit) {
    const found = [];
    let at = 0;
    for (const [segment, flat] of tape) {
      for (let i = 0, first = true; i < flat.length; i++, first = false) {
        const piece = { at, size: Math.floor(flat[i] / 4) * unit, state: flat[i] % 4, segment, first };
        if (piece.state === 3) { piece.live = flat[++i] * unit; piece.pending = flat[++i] * unit; }
        found.push(piece);
        at += piece.size;
      }
    }
    return { found, total: at };
  }

  function map(figure, job) {
    const policy = job.policies[+figure.dataset.policy];
    if (!policy.tape) return;
    const { found, total } = pieces(policy.tape, job.unit);
    const starts = found.map((piece) => piece.at);
    const canvas = html("canvas", figure), high = 13, gap = 3;
    let left = 62;

    function draw() {
      const width = Math.max(figure.clientWidth, 240), row = job.row, rows = Math.max(Math.ceil(total / row), 1);
      const sharp = devicePixelRatio || 1, height = rows * (high + gap) + 2;
      canvas.width = width * sharp;
      canvas.height = height * sharp;
      canvas.style.height = height + "px";
      const pen = canvas.getContext("2d");
      pen.scale(sharp, sharp);
      const paint = ["--free", "--live", "--pending"].map(colour), edge = colour("--edge"), back = colour("--back");
      pen.font = "11px system-ui, sans-serif";
      const every = Math.ceil(rows / 24), labels = [];
      for (let r = 0; r < rows; r += every) labels.push([r, tickText(r * row, total, true)]);
      left = 14 + Math.ceil(Math.max(...labels.map((each) => pen.measureText(each[1]).width)));
      canvas.setAttribute("aria-label", "rows: " + labels.map((each) => each[1]).join(", "));
      const scale = (width - left) / row;
      pen.textAlign = "right";
      pen.fillStyle = colour("--muted");
      for (const [r, label] of labels) pen.fillText(label, left - 8, r * (high + gap) + 11);
      for (const piece of found) {
        for (let at = piece.at; at < piece.at + piece.size; ) {
          const r = Math.floor(at / row), end = Math.min(piece.at + piece.size, (r + 1) * row);
          const x = left + (at - r * row) * scale, wide = Math.max((end - at) * scale, 0.3), y = r * (high + gap);
          if (piece.state < 3) {
            pen.fillStyle = paint[piece.state];
            pen.fillRect(x, y, wide, high);
          } else {
            let from = y + high;
            [[1, piece.live], [2, piece.pending], [0, piece.size - piece.live - piece.pending]].forEach(([state, part]) => {
              const tall = (part / piece.size) * high;
              pen.fillStyle = paint[state];
              pen.fillRect(x, from - tall, wide, tall);
              from -= tall;
            });
          }
          if (wide > 3 && at === piece.at && !piece.first) { pen.fillStyle = back; pen.fillRect(x, y, 0.6, high); }
          if (piece.first && at === piece.at) { pen.fillStyle = edge; pen.fillRect(x, y, 1, high); }
          at = end;
        }
      }
    }
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("pointermove", (at) => {
      const box = canvas.getBoundingClientRect(), x = at.clientX - box.left - left;
      const offset = Math.floor((at.clientY - box.top) / (high + gap)) * job.row + (x / (box.width - left)) * job.row;
      if (x < 0 || offset < 0 || offset >= total) return hideTip();
      const piece = found[before(starts, offset)];
      const rows = [["segment", piece.segment], [STATES[piece.state], size(piece.size)], ["at", size(piece.at)]];
      if (piece.state === 3) {
        rows.push(["live", size(piece.live)], ["pending", size(piece.pending)], ["free", size(piece.size - piece.live - piece.pending)]);
      }
      showTip(at, rows);
    });
    redraws(figure, draw);
  }

  const charts = { timeline, steps, map };
  for (const section of document.querySelectorAll("section.job")) {
    const job = jobs[+section.dataset.job];
    for (const figure of section.querySelectorAll("figure[data-chart]")) charts[figure.dataset.chart](figure, job);
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.dispatchEvent(new Event("theme"));
  });
})();
