// engine.js - the panel that shows what the engine does, and asks only while somebody can see it.

import {drawDisk, drawExperts, drawTimes, expertAt} from "/page/charts.js";
import {live} from "/page/client.js";
import {element} from "/page/markdown.js";

const PASSES_KEPT = 240;
const RECENT = 20;     // passes that rates are taken of
const STALE_S = 5;     // without a pass for so long the engine is idle
const RETRY_MS = 3000;

const PARTS = [
    ["io", "waiting for reads"], ["experts", "routed experts"], ["mix", "attention"],
    ["mlp", "dense and shared"], ["route", "routing"], ["checks", "checks"], ["head", "logits"],
    ["other", "other"],
];
const PLACES = [["resident", "in memory"], ["fresh", "just came"], ["reading", "being read"],
                ["absent", "on disk"]];
const FOUND = [["resident", "found in memory"], ["reading", "prefetched"],
               ["missed", "waited for"]];

const $ = (id) => document.getElementById(id);
const sum = (rows, member) => rows.reduce((s, row) => s + row[member], 0);
// Three digits, as people write them.
const digits = (n) => Number(n.toPrecision(3)).toLocaleString("en", {maximumFractionDigits: 6});
const percent = (part, whole) => whole ? `${(100 * part / whole).toFixed(0)}\u00a0%` : "–";

function rate(n) {
    const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
    let i = 0;
    for (; n >= 1000 && i < units.length - 1; i++)
        n /= 1000;
    return `${digits(n)} ${units[i]}`;
}

function size(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    for (; n >= 1024 && i < units.length - 1; i++)
        n /= 1024;
    return `${digits(n)} ${units[i]}`;
}

function milliseconds(ms) {
    return ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1e3)} s`;
}

function setText(id, text) {
    if ($(id).textContent !== text)
        $(id).textContent = text;
}

// Rows of texts; cells that are there already stay, so that a reader is not thrown out of them.
function fillTable(table, head, rows) {
    if (!table.tHead)
        table.append(element("thead", {}, element("tr", {},
                        ...head.map((h) => element("th", {scope: "col", textContent: h})))),
                     element("tbody"));
    const body = table.tBodies[0];
    while (body.rows.length > rows.length)
        body.lastChild.remove();
    while (body.rows.length < rows.length)
        body.append(element("tr", {}, element("th", {scope: "row"}),
                            ...head.slice(1).map(() => element("td"))));
    rows.forEach((row, i) => row.forEach((text, k) => {
        const cell = body.rows[i].cells[k];
        if (cell.textContent !== String(text))
            cell.textContent = text;
    }));
}

function legend(id, entries) {
    $(id).replaceChildren(...entries.map(([name, label]) =>
        element("li", {}, element("span", {className: `swatch c-${name}`}), label)));
}

export class EnginePanel {
    constructor(root, {onError}) {
        this.root = root;
        this.onError = onError;
        this.wanted = false;
        this.abort = null;
        legend("time-legend", PARTS);
        legend("experts-legend", PLACES);
        legend("found-legend", FOUND);
        this.forget();
        document.addEventListener("visibilitychange", () => this.watch(this.wanted));
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
        new ResizeObserver(() => this.draw()).observe(root);
        for (const details of root.querySelectorAll("details"))
            details.addEventListener("toggle", () => this.fillTables());
        $("experts").addEventListener("pointermove", (event) => {
            $("experts").title = expertAt(event, [...this.layers.values()]);
        });
    }

    forget() {
        this.engine = this.columns = this.sample = null;
        this.passes = [];
        this.layers = new Map();
    }

    watch(wanted) {
        this.wanted = wanted;
        const on = wanted && document.visibilityState === "visible";
        if (on && !this.abort) {
            this.abort = new AbortController();
            this.run(this.abort);
        } else if (!on && this.abort) {
            this.abort.abort();
            this.abort = null;
        }
    }

    async run(abort) {
        try {
            for await (const value of live(abort.signal))
                if (value.phase)
                    this.take(value);
        } catch (e) {
            if (e.name === "AbortError")
                return;
            this.onError(e);
        }
        if (this.abort !== abort)
            return;
        setText("engine-state", "not connected"); // what was seen last stays
        setTimeout(() => {
            if (this.abort === abort) {
                this.abort = null;
                this.watch(this.wanted);
            }
        }, RETRY_MS);
    }

    take(value) {
        if (value.engine) {
            this.forget();
            this.engine = value.engine;
            this.columns = value.columns;
        }
        this.sample = value;
        setText("engine-state", value.phase === "ready" ? "" : value.phase);
        for (const row of value.passes)
            this.passes.push(Object.fromEntries(this.columns.map((name, i) => [name, row[i]])));
        this.passes.splice(0, this.passes.length - PASSES_KEPT);
        for (const layer of value.layers)
            this.layers.set(layer.layer, {...layer, before: this.layers.get(layer.layer)?.map});
        if (value.engine)
            this.showFacts();
        this.showFigures();
        this.fillTables();
        this.draw();
    }

    get idle() {
        const last = this.passes.at(-1);
        return !last || this.sample.now - last.at > Math.max(STALE_S, 2 * last.ms / 1e3);
    }

    showFacts() {
        const e = this.engine;
        const facts = [
            ["Model", `${e.arch}, ${e.n_layers} layers, ${e.n_experts} experts a layer, ` +
                      `${e.top_k} for a token`],
            ["Memory", `${size(e.budget_bytes)}, of it ${e.n_frames} frames of ` +
                       `${size(e.frame_bytes)} for experts`],
            ["Reads", `${e.io_engine}, depth ${e.io_depth}, ${e.n_banks_direct} of ${e.n_banks} ` +
                      "banks past the page cache"],
            ["Computing", `${e.n_threads} threads, ${e.kernels}, ${e.numeric}`],
            ["Policy", `${e.policy}, looks ${e.lookahead} layers ahead`],
        ];
        $("facts").replaceChildren(...facts.flatMap(([name, text]) =>
            [element("dt", {textContent: name}), element("dd", {textContent: text})]));
    }

    showFigures() {
        const s = this.sample;
        setText("f-answering", `${s.answering} of ${s.sessions}`);
        setText("f-prefilling", String(s.prefilling));
        setText("f-queued", String(s.queued));
        const decode = this.passes.filter((p) => p.decode_rows && !p.prefill_rows).slice(-RECENT);
        const each = sum(decode, "ms") / sum(decode, "decode_rows");
        setText("f-rate", decode.length && !this.idle ? `${digits(1e3 / each)} tok/s` : "idle");
        this.showDisk();
        this.showTimes(decode);
        this.showExperts();
    }

    showDisk() {
        const ceiling = this.engine?.drive_bytes_per_s;
        const recent = this.passes.slice(-RECENT);
        const ms = sum(recent, "ms");
        const now = ms ? sum(recent, "bytes_read") / ms * 1e3 : 0;
        const passes = `the last ${recent.length} passes`;
        const of = ceiling ? `the drives reach ${rate(ceiling)}`
                           : "what the drives reach was not measured";
        if (!recent.length)
            setText("disk-text", `No pass yet; ${of}.`);
        else if (!now)
            setText("disk-text", `Nothing was read in ${passes}; ${of}.`);
        else
            setText("disk-text", `${rate(now)} in ${passes}` +
                    (ceiling ? `, ${percent(now, ceiling)} of ${rate(ceiling)}` : `; ${of}`) + ".");
    }

    showTimes(decode) {
        const recent = decode.length ? decode : this.passes.slice(-RECENT);
        if (!recent.length) {
            setText("time-text", "No pass yet.");
            return;
        }
        const ms = sum(recent, "ms");
        const rows = sum(recent, "decode_rows") + sum(recent, "prefill_rows");
        const parts = PARTS.map(([name, label]) => [sum(recent, name), label])
            .sort((a, b) => b[0] - a[0]).slice(0, 3)
            .map(([part, label]) => `${percent(part, ms)} ${label}`);
        setText("time-text", `${milliseconds(ms / rows)} a token lately: ${parts.join(", ")}.`);
    }

    showExperts() {
        const layers = [...this.layers.values()];
        if (!layers.length) {
            setText("experts-text", "Not looked at yet.");
            return;
        }
        const here = sum(layers, "resident");
        const all = sum(layers, "experts");
        const hits = sum(layers, "hits_resident");
        const ahead = sum(layers, "hits_prefetch");
        const pins = hits + ahead + sum(layers, "misses");
        const count = (n) => n.toLocaleString("en");
        setText("experts-text", `${count(here)} of ${count(all)} (${percent(here, all)}) are in ` +
                "memory. " + (pins ? `Of ${count(pins)} uses, ${percent(hits, pins)} found theirs ` +
                `there, ${percent(ahead, pins)} were prefetched.` : "None was used yet."));
    }

    fillTables() {
        if ($("time-table").closest("details").open)
            fillTable($("time-table"),
                ["Pass", "Prompt", "Tokens", "All", ...PARTS.map(([, label]) => label)],
                this.passes.slice(-RECENT).reverse().map((p) =>
                    [p.n, p.prefill_rows, p.decode_rows, p.ms.toFixed(1),
                     ...PARTS.map(([name]) => p[name].toFixed(1))]));
        if ($("experts-table").closest("details").open)
            fillTable($("experts-table"),
                ["Layer", "Experts", "In memory", "Being read", "Found", "Prefetched", "Waited for"],
                [...this.layers.values()].map((l) =>
                    [l.layer, l.experts, l.resident, l.reading, l.hits_resident, l.hits_prefetch,
                     l.misses]));
    }

    draw() {
        this.frame ??= requestAnimationFrame(() => {
            this.frame = null;
            if (this.root.hidden)
                return;
            drawDisk($("disk"), this.passes, this.engine?.drive_bytes_per_s ?? 0);
            drawTimes($("time"), this.passes, PARTS.map(([name]) => name));
            drawExperts($("experts"), [...this.layers.values()]);
        });
    }
}
