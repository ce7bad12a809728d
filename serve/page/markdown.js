// markdown.js - a model's text as elements.
//
// Text reaches the document as text nodes alone; there is no path from it to markup, attributes
// other than a checked href, or script. What is not understood stays as it was written.

const INLINE_MOST = 20000; // characters of one paragraph that are looked at for emphasis
const DEPTH_MOST = 6;      // quotes and lists within each other

export function element(name, properties = {}, ...children) {
    const e = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
        if (key.startsWith("aria-") || key === "role" || key === "scope")
            e.setAttribute(key, value);
        else
            e[key] = value;
    }
    e.append(...children);
    return e;
}

// ---- within a line --------------------------------------------------------------------------

const MARKS = /\\[\\`*_{}[\]()#+\-.!~|>]|`+|\*\*|\*|~~|_|\[|https?:\/\/[^\s<>"]+/g;
const LINK = /\[([^[\]\n]{1,1000})\]\((https?:\/\/[^()\s]{1,2000})\)/y;
const EMPHASIS = {"**": "strong", "*": "em", "_": "em", "~~": "del"};

function link(href, ...children) {
    return element("a", {href, target: "_blank", rel: "noopener noreferrer"}, ...children);
}

// Where the emphasis that begins at `at` ends, or -1.
function closing(text, mark, at) {
    const from = at + mark.length;
    if (!/\S/.test(text[from] ?? " ") || (mark === "_" && /\w/.test(text[at - 1] ?? " ")))
        return -1;
    for (let end = text.indexOf(mark, from + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
        if (mark === "*" && (text[end + 1] === "*" || text[end - 1] === "*"))
            continue;
        if (/\S/.test(text[end - 1]) && !(mark === "_" && /\w/.test(text[end + 1] ?? " ")))
            return end;
    }
    return -1;
}

// What stands at a mark: [element or text, where it ends], or null if it is only text.
function span(text, mark, at, depth) {
    if (mark[0] === "\\")
        return [mark[1], at + 2];
    if (mark[0] === "`") {
        const end = text.indexOf(mark, at + mark.length);
        if (end < 0)
            return null;
        return [element("code", {textContent: text.slice(at + mark.length, end)}),
                end + mark.length];
    }
    if (mark === "[") {
        LINK.lastIndex = at;
        const found = LINK.exec(text);
        return found && [link(found[2], ...inline(found[1], depth + 1)), LINK.lastIndex];
    }
    if (mark[0] === "h") {
        const href = mark.replace(/[.,;:!?)\]'*_]+$/, "");
        return [link(href, href), at + href.length];
    }
    const end = closing(text, mark, at);
    if (end < 0)
        return null;
    return [element(EMPHASIS[mark], {}, ...inline(text.slice(at + mark.length, end), depth + 1)),
            end + mark.length];
}

function inline(text, depth = 0) {
    if (depth > DEPTH_MOST || text.length > INLINE_MOST)
        return [text];
    const out = [];
    const marks = new RegExp(MARKS);
    let from = 0;
    for (let found; (found = marks.exec(text));) {
        const made = span(text, found[0], found.index, depth);
        if (!made)
            continue;
        out.push(text.slice(from, found.index), made[0]);
        marks.lastIndex = from = made[1];
    }
    out.push(text.slice(from));
    return out.filter((x) => x !== "");
}

// ---- blocks ---------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*?)[ #]*$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const COLUMNS = /^ *\|?( *:?-+:? *\|)* *:?-+:? *\|? *$/;

const isBlank = (line) => /^\s*$/.test(line);

function beginsBlock(lines, at) {
    const line = lines[at];
    return isBlank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
        QUOTE.test(line) || ITEM.test(line);
}

function beginsTable(lines, at) {
    return lines[at].includes("|") && lines[at + 1]?.includes("|") && COLUMNS.test(lines[at + 1]);
}

// The first line behind the block that begins at `at`.
function blockEnd(lines, at) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    let end = at + 1;
    if (fence) {
        const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},} *$`);
        while (end < lines.length && !close.test(lines[end]))
            end++;
        return Math.min(end + 1, lines.length);
    }
    if (HEADING.test(line) || RULE.test(line))
        return end;
    if (QUOTE.test(line)) {
        while (end < lines.length && QUOTE.test(lines[end]))
            end++;
        return end;
    }
    if (beginsTable(lines, at)) {
        while (end < lines.length && lines[end].includes("|"))
            end++;
        return end;
    }
    const item = ITEM.exec(line);
    if (item)
        return listEnd(lines, end);
    while (end < lines.length && !beginsBlock(lines, end) && !beginsTable(lines, end))
        end++;
    return end;
}

function listEnd(lines, end) {
    for (; end < lines.length; end++) {
        if (isBlank(lines[end])) {
            const next = lines[end + 1];
            if (next === undefined || !(ITEM.test(next) || /^ {2,}\S/.test(next)))
                return end;
        } else if (!ITEM.test(lines[end]) && !/^ {2,}/.test(lines[end]) &&
                   beginsBlock(lines, end)) {
            return end;
        }
    }
    return end;
}

function splitBlocks(text) {
    const lines = text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");
    const blocks = [];
    for (let at = 0; at < lines.length;) {
        if (isBlank(lines[at])) {
            at++;
            continue;
        }
        const end = blockEnd(lines, at);
        blocks.push(lines.slice(at, end));
        at = end;
    }
    return blocks;
}

function codeBlock(lines, fence) {
    const close = lines.length > 1 && lines.at(-1).trim().startsWith(fence[1]);
    const text = lines.slice(1, close ? -1 : undefined).join("\n");
    return element("figure", {className: "code"},
        element("figcaption", {}, element("span", {textContent: fence[2] || "code"}),
            element("button", {type: "button", className: "copy-code", textContent: "Copy"})),
        element("pre", {tabIndex: 0, role: "region", "aria-label": "Code"},
            element("code", {textContent: text})));
}

function list(lines, depth) {
    const first = ITEM.exec(lines[0]);
    const ordered = /\d/.test(first[2]);
    const out = element(ordered ? "ol" : "ul", ordered ? {start: parseInt(first[2], 10)} : {});
    let own = [];
    let indent = 0;
    const finish = () => {
        if (own.length)
            out.append(element("li", {}, ...blocks(own.join("\n"), depth + 1, true)));
    };
    for (const line of lines) {
        const item = ITEM.exec(line);
        if (item && item[1].length <= first[1].length + 1) {
            finish();
            indent = item[0].length;
            own = [line.slice(indent)];
        } else {
            own.push(line.slice(Math.min(indent, /^ */.exec(line)[0].length)));
        }
    }
    finish();
    return out;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function table(lines) {
    const head = cells(lines[0]);
    const row = (line) => element("tr", {},
        ...cells(line).slice(0, head.length).map((c) => element("td", {}, ...inline(c))));
    return element("div", {className: "scroll", tabIndex: 0, role: "region",
                           "aria-label": "Table"},
        element("table", {},
            element("thead", {}, element("tr", {},
                ...head.map((c) => element("th", {scope: "col"}, ...inline(c))))),
            element("tbody", {}, ...lines.slice(2).map(row))));
}

function block(lines, depth, tight) {
    const fence = FENCE.exec(lines[0]);
    if (fence)
        return codeBlock(lines, fence);
    const heading = HEADING.exec(lines[0]);
    if (heading) // below the heading that says who speaks
        return element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
    if (RULE.test(lines[0]))
        return element("hr");
    if (depth < DEPTH_MOST && QUOTE.test(lines[0]))
        return element("blockquote", {},
            ...blocks(lines.map((l) => l.replace(QUOTE, "")).join("\n"), depth + 1));
    if (depth < DEPTH_MOST && ITEM.test(lines[0]))
        return list(lines, depth);
    if (beginsTable(lines, 0))
        return table(lines);
    return element(tight ? "span" : "p", {}, ...inline(lines.join("\n")));
}

// tight: the paragraph of a list's item is no paragraph of its own if it is alone.
function blocks(text, depth, tight = false) {
    const parts = splitBlocks(text);
    const paragraphs = parts.filter((p) => !ITEM.test(p[0]));
    return parts.map((lines) => block(lines, depth, tight && paragraphs.length === 1));
}

// A text that grows: blocks that have not changed keep their elements, and any selection in them.
export class MarkdownView {
    constructor(root) {
        this.root = root;
        this.sources = [];
    }

    update(text) {
        const parts = splitBlocks(text);
        const sources = parts.map((lines) => lines.join("\n"));
        let same = 0;
        while (same < sources.length && sources[same] === this.sources[same])
            same++;
        while (this.root.childNodes.length > same)
            this.root.lastChild.remove();
        this.root.append(...parts.slice(same).map((lines) => block(lines, 0, false)));
        this.sources = sources;
    }
}
