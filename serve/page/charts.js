// charts.js - what the engine does, on canvases. Every figure here also stands in a text or table.

const BAR = 4, GAP = 1;     // of passes, in CSS pixels
const HEAD = 15;            // above a chart: its scale
const LABEL = 24;           // left of the map: numbers of layers
const FOUND = 56;           // right of it: what a layer's uses found
const TOP = 4;              // above it: half of a label
const ROW_MOST = 12, ROW_LEAST = 3, FOLDED = 2; // heights of a layer, of a line of a folded one

const still = matchMedia("(prefers-reduced-motion: reduce)");

// A canvas as large as it is shown, cleared; a lookup of the page's colours with it.
function begin(canvas, height) {
    const width = canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    if (height)
        canvas.style.height = `${height}px`;
    else
        height = canvas.clientHeight;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const style = getComputedStyle(canvas);
    return {g, width, height, colour: (name) => style.getPropertyValue(`--c-${name}`)};
}

const lastOf = (passes, width) => passes.slice(-Math.floor(width / (BAR + GAP)));

// A round number that is not below.
function ceilingOf(value) {
    const step = 10 ** Math.floor(Math.log10(value || 1));
    return [1, 1.5, 2, 3, 4, 6, 8, 10].map((n) => n * step).find((n) => n >= value) ?? value;
}

// Bars are drawn between HEAD and `foot`; above them stands what their full height means.
function frame({g, width, colour}, foot, text) {
    g.strokeStyle = colour("line");
    g.strokeRect(0.5, HEAD + 0.5, width - 1, foot - HEAD - 1);
    g.font = "11px ui-monospace, monospace";
    g.fillStyle = colour("label");
    g.textAlign = "right";
    g.textBaseline = "top";
    g.fillText(text, width, 0);
}

export function drawDisk(canvas, passes, ceiling) {
    const c = begin(canvas);
    const {g, width, height, colour} = c;
    const shown = lastOf(passes, width);
    const rates = shown.map((p) => p.bytes_read / p.ms * 1e3);
    const top = ceilingOf(Math.max(ceiling * 1.05, ...rates, 1));
    const full = (height - HEAD) / top;
    g.fillStyle = colour("io");
    rates.forEach((r, i) =>
        g.fillRect(width - (shown.length - i) * (BAR + GAP), height - r * full, BAR, r * full));
    if (ceiling) {
        g.strokeStyle = colour("label");
        g.setLineDash([4, 3]);
        g.beginPath();
        g.moveTo(0, height - ceiling * full);
        g.lineTo(width, height - ceiling * full);
        g.stroke();
        g.setLineDash([]);
    }
    const read = ceiling || rates.some((r) => r);
    const scale = top < 1e9 ? `${top / 1e6} MB/s` : `${top / 1e9} GB/s`;
    frame(c, height, read ? scale + (ceiling ? ", dashed: measured" : "") : "");
}

export function drawTimes(canvas, passes, parts) {
    const c = begin(canvas);
    const {g, width, height, colour} = c;
    const shown = lastOf(passes, width);
    const each = shown.map((p) => p.ms / (p.prefill_rows + p.decode_rows));
    // One slow pass shall not make all others unreadable: it is cut off at the top, and capped.
    const usual = [...each].sort((a, b) => a - b)[Math.floor(0.95 * each.length)];
    const top = ceilingOf(usual * 1.2 || 0.001);
    const foot = height - 4; // below it: which are passes of a prompt
    shown.forEach((p, i) => {
        const x = width - (shown.length - i) * (BAR + GAP);
        const rows = p.prefill_rows + p.decode_rows;
        let y = foot;
        for (const part of parts) {
            const h = Math.min(p[part] / rows / top * (foot - HEAD), y - HEAD);
            g.fillStyle = colour(part);
            g.fillRect(x, y - h, BAR, h);
            y -= h;
        }
        g.fillStyle = colour("label");
        if (each[i] > top)
            g.fillRect(x, HEAD, BAR, 3);
        if (p.prefill_rows)
            g.fillRect(x, height - 2, BAR, 2);
    });
    frame(c, foot, shown.length ? `${top < 1000 ? `${top} ms` : `${top / 1000} s`} a token` : "");
}

const PLACE = {0: "absent", 1: "reading", 2: "resident"};

function placeOf(layer, i) {
    if (layer.map[i] === "2" && layer.before && layer.before[i] !== "2" && !still.matches)
        return "fresh";
    return PLACE[layer.map[i]];
}

// Where things are on the map. A layer with more experts than there are pixels takes several lines,
// so that a cell is never less than a pixel.
function geometry(width, layers) {
    const most = Math.max(...layers.map((l) => l.experts));
    const room = width - LABEL - FOUND - 8;
    const lines = Math.ceil(most / room);
    const across = Math.ceil(most / lines);
    const exact = room / across;
    const cell = exact < 3 ? Math.floor(exact * devicePixelRatio) / devicePixelRatio : exact;
    if (lines > 1)
        return {across, cell, line: FOLDED, row: lines * FOLDED + 1};
    const wish = Math.round(Math.max(cell, 320 / layers.length));
    const row = Math.max(ROW_LEAST, Math.min(ROW_MOST, wish));
    return {across, cell, line: row, row};
}

function drawFound({g, width, colour}, layer, y, h) {
    const pins = layer.hits_resident + layer.hits_prefetch + layer.misses;
    let x = width - FOUND;
    for (const [n, name] of [[layer.hits_resident, "resident"], [layer.hits_prefetch, "reading"],
                             [layer.misses, "missed"]]) {
        const w = pins ? n / pins * FOUND : 0;
        g.fillStyle = colour(name);
        g.fillRect(x, y, w, h);
        x += w;
    }
}

export function drawExperts(canvas, layers) {
    if (!layers.length)
        return;
    const {across, cell, line, row} = geometry(canvas.clientWidth, layers);
    const c = begin(canvas, TOP + row * layers.length);
    const {g, colour} = c;
    const colours = Object.fromEntries(["absent", "reading", "resident", "fresh"]
        .map((name) => [name, colour(name)]));
    const gap = cell < 3 ? 0 : 1;
    const h = line >= 5 ? line - 1 : line;
    const every = Math.ceil(11 / row);
    g.font = "10px ui-monospace, monospace";
    g.textAlign = "right";
    g.textBaseline = "middle";
    layers.forEach((layer, k) => {
        const y = TOP + k * row;
        if (k % every === 0) {
            g.fillStyle = colour("label");
            g.fillText(layer.layer, LABEL - 5, y + row / 2);
        }
        for (let i = 0; i < layer.experts; i++) {
            const column = i % across;
            const x = gap ? Math.round(column * cell) : column * cell;
            const w = gap ? Math.round((column + 1) * cell) - x - gap : cell;
            g.fillStyle = colours[placeOf(layer, i)];
            g.fillRect(LABEL + x, y + Math.floor(i / across) * line, w, h);
        }
        drawFound(c, layer, y, row > 4 ? row - 1 : row);
    });
}

// What is under the pointer, in words.
export function expertAt(event, layers) {
    if (!layers.length)
        return "";
    const {across, cell, line, row} = geometry(event.target.clientWidth, layers);
    const y = event.offsetY - TOP;
    const layer = layers[Math.floor(y / row)];
    const x = Math.floor((event.offsetX - LABEL) / cell);
    const i = Math.floor(y % row / line) * across + x;
    const words = {0: "on disk", 1: "being read", 2: "in memory"};
    if (!layer || x < 0 || x >= across || !layer.map[i])
        return "";
    return `Layer ${layer.layer}, expert ${i}: ${words[layer.map[i]]}`;
}
