// announcer.js - an answer for those who listen to it: whole sentences, and not too often.

const PAUSE_MS = 2500;
const LINES_KEPT = 20;

export class Announcer {
    constructor(region) {
        this.region = region;
        this.begin();
    }

    begin() {
        clearTimeout(this.timer);
        this.timer = null;
        this.rest = "";
        this.region.replaceChildren();
    }

    feed(text) {
        this.rest += text;
        this.timer ??= setTimeout(() => this.say(), PAUSE_MS);
    }

    say() {
        this.timer = null;
        const whole = /^[^]*[.!?:;\n](?=\s|$)/.exec(this.rest)?.[0];
        if (!whole)
            return;
        this.rest = this.rest.slice(whole.length);
        this.tell(whole);
    }

    // Everything that is left, and how it ended.
    end(how) {
        clearTimeout(this.timer);
        this.timer = null;
        this.tell(this.rest);
        this.rest = "";
        this.tell(how);
    }

    tell(text) {
        if (!text.trim())
            return;
        const line = document.createElement("p");
        line.textContent = text;
        this.region.append(line);
        while (this.region.childElementCount > LINES_KEPT)
            this.region.firstChild.remove();
    }
}
