// conversations.js - what was said, in this browser's storage: an index, and a value for each.

const INDEX = "waste.conversations";
const ONE = "waste.conversation.";
const SETTINGS = "waste.settings";
const TITLE_MOST = 60;

function read(name, otherwise) {
    try {
        return JSON.parse(localStorage.getItem(name)) ?? otherwise;
    } catch {
        return otherwise; // somebody else's, or cut
    }
}

export const settings = {
    get: () => read(SETTINGS, {}),
    set: (value) => localStorage.setItem(SETTINGS, JSON.stringify(value)),
};

// [{id, title, changed}], the last changed first.
export function list() {
    return read(INDEX, []).sort((a, b) => b.changed - a.changed);
}

export function create() {
    return {id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), messages: []};
}

// An answer that was coming when the page went is marked: it will not go on.
export function load(id) {
    const found = read(ONE + id, null);
    for (const message of found?.messages ?? []) {
        if (message.running) {
            delete message.running;
            message.note = "broken off: the page was closed";
        }
    }
    return found;
}

function title(conversation) {
    const first = conversation.messages.find((m) => m.role === "user");
    const text = first?.text.replace(/\s+/g, " ").trim() || (first ? "Image" : "Empty");
    return text.length > TITLE_MOST ? text.slice(0, TITLE_MOST - 1) + "…" : text;
}

// False: the browser's storage is full, or forbidden.
export function save(conversation) {
    const others = list().filter((entry) => entry.id !== conversation.id);
    const own = {id: conversation.id, title: title(conversation), changed: Date.now()};
    try {
        localStorage.setItem(ONE + conversation.id, JSON.stringify(conversation));
        localStorage.setItem(INDEX, JSON.stringify([own, ...others]));
    } catch {
        return false;
    }
    return true;
}

export function remove(id) {
    localStorage.removeItem(ONE + id);
    localStorage.setItem(INDEX, JSON.stringify(list().filter((entry) => entry.id !== id)));
}

// The messages of a request. Reasoning goes back as it came: the server's kept states begin with it.
export function forRequest(messages, system) {
    const out = system ? [{role: "system", content: system}] : [];
    for (const m of messages) {
        if (m.role === "user") {
            const parts = (m.images ?? []).map((url) => ({type: "image_url", image_url: {url}}));
            if (m.text)
                parts.push({type: "text", text: m.text});
            out.push({role: "user", content: m.images?.length ? parts : m.text});
        } else if (m.text || m.thinking) {
            out.push({role: "assistant", content: m.text,
                      ...(m.thinking && {reasoning_content: m.thinking})});
        }
    }
    return out;
}
