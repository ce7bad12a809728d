// thread.js - the messages of a conversation as elements.

import {MarkdownView, element} from "/page/markdown.js";

const seconds = (ms) => `${(ms / 1e3).toFixed(ms < 1e4 ? 1 : 0)} s`;

const rate = (n) => `${Number(n.toPrecision(3))} tok/s`;

function bytes(n) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    for (; n >= 1000 && i < units.length - 1; i++)
        n /= 1000;
    return `${n.toFixed(n < 10 && i ? 1 : 0)} ${units[i]}`;
}

// What an answer took, in words.
export function usageLine({usage, waste}) {
    const out = [];
    if (usage) {
        const {cached_tokens: cached} = usage.prompt_tokens_details;
        const {reasoning_tokens: thought} = usage.completion_tokens_details;
        out.push(`${usage.prompt_tokens} in, ${cached} of them cached`,
                 `${usage.completion_tokens} out` + (thought ? `, ${thought} thinking` : ""));
        if (waste?.decode_ms > 0 && usage.completion_tokens > 1)
            out.push(rate((usage.completion_tokens - 1) / waste.decode_ms * 1e3));
    }
    if (waste) {
        const experts = waste.experts_hit + waste.experts_missed;
        out.push(`first after ${seconds(waste.queued_ms + waste.prefill_ms)}`);
        if (experts)
            out.push(`${(100 * waste.experts_hit / experts).toFixed(1)} % of experts in memory`);
        out.push(`${bytes(waste.bytes_read)} read`);
    }
    return out.join(" · ");
}

export function pictures(urls, remove) {
    return urls.map((src, i) => {
        const item = element("li", {},
            element("img", {src, alt: `Attached image ${i + 1}`}));
        if (remove)
            item.append(element("button", {type: "button", textContent: "Remove",
                                           "aria-label": `Remove image ${i + 1}`,
                                           onclick: () => remove(i)}));
        return item;
    });
}

// One message. act(what, index, extra): "retry", "edit", "copy".
class MessageView {
    constructor(message, index, act) {
        this.index = index;
        this.act = act;
        const user = message.role === "user";
        this.name = user ? "You" : "Model";
        this.body = element("div", {className: "body"});
        this.tools = element("div", {className: "tools"}, ...this.buttons(user));
        this.root = element("li", {},
            element("article", {className: message.role},
                element("h2", {textContent: this.name}), this.body));
        this.article = this.root.firstChild;
        if (user) {
            this.images = element("ul", {className: "pictures", hidden: true,
                                         "aria-label": "Images"});
            this.text = element("div", {className: "plain"});
            this.body.append(this.images, this.text);
        } else {
            this.thought = element("div", {className: "thought"});
            this.summary = element("summary");
            this.thinking = element("details", {hidden: true}, this.summary, this.thought);
            this.text = element("div", {className: "markdown"});
            this.markdown = new MarkdownView(this.text);
            this.note = element("p", {className: "note", hidden: true});
            this.usage = element("p", {className: "usage", hidden: true});
            this.body.append(this.thinking, this.text, this.note, this.usage);
        }
        this.article.append(this.tools);
        this.update(message);
    }

    buttons(user) {
        const button = (label, what) => element("button", {
            type: "button", textContent: label,
            "aria-label": `${label}: ${this.name}, message ${this.index + 1}`,
            onclick: () => this.act(what, this.index)});
        return user ? [button("Edit", "edit"), button("Copy", "copy")]
                    : [button("Retry", "retry"), button("Copy", "copy")];
    }

    update(message) {
        if (message.role === "user") {
            this.text.textContent = message.text;
            this.images.replaceChildren(...pictures(message.images ?? []));
            this.images.hidden = !message.images?.length;
            return;
        }
        const running = Boolean(message.running);
        this.article.setAttribute("aria-busy", running);
        this.thinking.hidden = !message.thinking;
        this.summary.textContent = running && !message.text ? "Thinking…" : "Thinking";
        if (this.thought.textContent !== (message.thinking ?? ""))
            this.thought.textContent = message.thinking;
        this.markdown.update(message.text);
        this.note.textContent = running ? message.progress ?? "" : message.note ?? "";
        this.note.classList.toggle("error", Boolean(message.failed));
        this.note.hidden = !this.note.textContent;
        this.usage.textContent = running ? "" : usageLine(message);
        this.usage.hidden = !this.usage.textContent;
        this.tools.hidden = running;
    }

    // In the place of the body; done(text, images) or done(null).
    edit(message, done) {
        let images = [...message.images ?? []];
        const shown = element("ul", {className: "pictures", "aria-label": "Attached images"});
        const show = () => {
            shown.replaceChildren(...pictures(images, (i) => {
                images = images.filter((_, k) => k !== i);
                show();
                area.focus();
            }));
            shown.hidden = !images.length;
        };
        const area = element("textarea", {value: message.text, rows: 3,
                                          "aria-label": `Edit message ${this.index + 1}`});
        const close = (text) => {
            form.replaceWith(this.body);
            this.tools.hidden = false;
            done(text, images);
        };
        const form = element("form", {className: "edit"}, shown, area,
            element("p", {className: "small",
                          textContent: "What follows this message will be answered anew."}),
            element("div", {className: "row"},
                element("button", {type: "button", textContent: "Cancel",
                                   onclick: () => close(null)}),
                element("button", {type: "submit", className: "strong", textContent: "Send"})));
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            if (area.value.trim() || images.length)
                close(area.value);
        });
        form.addEventListener("keydown", (event) => {
            if (event.key === "Escape") {
                event.stopPropagation();
                close(null);
            } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing &&
                       event.target === area) {
                event.preventDefault();
                form.requestSubmit();
            }
        });
        show();
        this.body.replaceWith(form);
        this.tools.hidden = true;
        area.focus();
    }

    focusTool() {
        this.tools.querySelector("button").focus();
    }
}

// The list of them, which follows its own end unless the reader has gone elsewhere.
export class Thread {
    constructor({list, scroller, latest, empty, act}) {
        Object.assign(this, {list, scroller, latest, empty, act, views: []});
        this.follows = true;
        scroller.addEventListener("scroll", () => {
            this.follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
            latest.hidden = this.follows;
        });
        latest.addEventListener("click", () => {
            this.toEnd();
            scroller.focus();
        });
    }

    toEnd() {
        this.follows = true;
        this.scroller.scrollTop = this.scroller.scrollHeight;
    }

    show(messages) {
        this.views = messages.map((m, i) => new MessageView(m, i, this.act));
        this.list.replaceChildren(...this.views.map((v) => v.root));
        this.empty.hidden = messages.length > 0;
        this.toEnd();
    }

    update(index, message) {
        this.views[index]?.update(message);
        if (this.follows)
            this.toEnd();
    }
}
