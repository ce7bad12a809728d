// app.js - the page: one conversation at a time, one answer at a time, panels beside it.

import {Announcer} from "/page/announcer.js";
import {ServerError, chat, getJson, key} from "/page/client.js";
import * as conversations from "/page/conversations.js";
import {EnginePanel} from "/page/engine.js";
import {element} from "/page/markdown.js";
import {shrink} from "/page/picture.js";
import {Thread, pictures} from "/page/thread.js";

const $ = (id) => document.getElementById(id);
const SAVE_MS = 1000; // between savings of an answer that is coming
const WIDE = window.matchMedia("(min-width: 70rem)");

let conversation = conversations.create();
let answer = null; // {abort, message, index} while one is coming
let leaving = false;
let attached = [];
let model = null;

const announcer = new Announcer($("said"));
const thread = new Thread({list: $("messages"), scroller: $("scroller"), latest: $("latest"),
                           empty: $("empty"), act});

// ---- notices --------------------------------------------------------------------------------

let noticeAction = null;

function notice(text, label, action) {
    $("notice-text").textContent = text;
    $("notice-act").hidden = !label;
    $("notice-act").textContent = label ?? "";
    noticeAction = action;
    $("notice").hidden = false;
}

function quiet() {
    $("notice").hidden = true;
}

$("notice-close").addEventListener("click", () => {
    quiet();
    $("message").focus();
});
$("notice-act").addEventListener("click", () => {
    quiet();
    noticeAction();
});

function state(kind, text) {
    $("state").dataset.kind = kind;
    if ($("state-text").textContent !== text)
        $("state-text").textContent = text;
}

// ---- conversations --------------------------------------------------------------------------

function keep() {
    if (!conversations.save(conversation))
        notice("This browser's storage is full: the conversation will be lost when the page " +
               "goes. Deleting others makes room.");
}

function showList() {
    $("conversations").replaceChildren(...conversations.list().map(({id, title}) =>
        element("li", {},
            element("button", {type: "button", className: "open", textContent: title,
                               "aria-current": id === conversation.id ? "true" : "false",
                               onclick: () => open(id)}),
            element("button", {type: "button", className: "delete", textContent: "Delete",
                               "aria-label": `Delete: ${title}`, onclick: () => remove(id)}))));
}

function show(next) {
    leave();
    conversation = next;
    announcer.begin();
    thread.show(conversation.messages);
    showList();
    history.replaceState(null, "", conversation.messages.length ? `#${conversation.id}` : "#");
    quiet();
    if (!WIDE.matches)
        panel("list", false);
}

function open(id) {
    const found = id !== conversation.id && conversations.load(id);
    if (found)
        show(found);
    $("message").focus();
}

function remove(id) {
    const gone = id === conversation.id ? conversation : conversations.load(id);
    conversations.remove(id);
    if (id === conversation.id)
        show(conversations.create());
    else
        showList();
    notice("Deleted.", "Undo", () => {
        conversations.save(gone);
        show(gone);
    });
    $("new").focus();
}

// ---- an answer ------------------------------------------------------------------------------

function body() {
    const s = conversations.settings.get();
    return {
        model: model?.id, messages: conversations.forRequest(conversation.messages, s.system),
        ...(s.temperature !== undefined && {temperature: s.temperature}),
        ...(s.tokens && {max_tokens: s.tokens}),
        ...(s.effort && {reasoning_effort: s.effort}),
    };
}

function progressLine(value) {
    if (value.comment?.startsWith("queued behind") || value.queue) {
        const n = value.queue?.position ?? parseInt(value.comment.slice(13), 10);
        return n ? `Waiting: ${n} before this one` : "Waiting: next";
    }
    const p = value.prompt_progress;
    if (p)
        return p.processed < p.total ? `Reading the prompt: ${p.processed} of ${p.total}` +
            (p.cache ? `, ${p.cache} known already` : "") : "Choosing the first word";
    return null;
}

function take(message, value) {
    message.progress = progressLine(value) ?? message.progress;
    const choice = value.choices?.[0];
    if (choice?.delta?.reasoning_content)
        message.thinking = (message.thinking ?? "") + choice.delta.reasoning_content;
    if (choice?.delta?.content) {
        message.text += choice.delta.content;
        announcer.feed(choice.delta.content);
    }
    if (message.text || message.thinking)
        delete message.progress;
    if (choice?.finish_reason === "length")
        message.note = "Stopped at the most tokens that were asked for, or at the context's end.";
    if (value.waste)
        message.waste = value.waste;
    if (value.usage)
        message.usage = value.usage;
}

function explain(e) {
    if (e.code === "vision_disabled")
        return "This server does not see images: nothing was computed. Edit the message and " +
            "remove them.";
    if (e.status === 503)
        return `The server is busy: ${e.message}.` +
            (e.retryAfter ? ` It suggests to try again in ${e.retryAfter} s.` : "");
    return e.message;
}

async function ask() {
    const message = {role: "assistant", text: "", running: true};
    const abort = new AbortController();
    conversation.messages.push(message);
    const own = {abort, message, index: conversation.messages.length - 1, conversation};
    answer = own;
    const request = body();
    thread.show(conversation.messages);
    busy(true);
    keep();
    showList();
    announcer.begin();
    announcer.tell("The model is asked.");
    let saved = performance.now();
    let drawn = 0;
    const draw = () => {
        drawn = 0;
        if (answer === own)
            thread.update(own.index, message);
    };
    try {
        for await (const value of chat(request, abort.signal)) {
            take(message, value);
            drawn ||= requestAnimationFrame(draw);
            if (performance.now() - saved > SAVE_MS) {
                conversations.save(own.conversation);
                saved = performance.now();
            }
        }
    } catch (e) {
        fail(message, e);
    }
    cancelAnimationFrame(drawn);
    if (leaving)
        return; // the page was left, and not the answer stopped: the next load says so
    delete message.running;
    delete message.progress;
    if (!conversations.list().some((entry) => entry.id === own.conversation.id))
        return; // deleted meanwhile
    conversations.save(own.conversation);
    if (answer !== own)
        return;
    answer = null;
    busy(false);
    keep();
    thread.update(own.index, message);
    announcer.end(message.failed ? message.note : message.note ?? "The answer is complete.");
}

function fail(message, e) {
    if (e.name === "AbortError") {
        message.note = "Stopped.";
        return;
    }
    message.failed = true;
    message.note = e instanceof ServerError ? explain(e) : `The page made a mistake: ${e.message}`;
    if (e.status === 401)
        askKey();
}

function stop() {
    answer?.abort.abort();
}

// Stop, and do not wait to hear of it: what has come so far is kept with its conversation.
function leave() {
    stop();
    answer = null;
    busy(false);
}

function busy(now) {
    $("send").textContent = now ? "Stop" : "Send"; // in its place: the focus stays
    $("send").classList.toggle("stop", now);
}

function say(text, images) {
    conversation.messages.push({role: "user", text, ...(images.length && {images})});
    history.replaceState(null, "", `#${conversation.id}`);
    quiet();
    return ask();
}

// From message `index` on, anew; text: what the user says there now.
function again(index, text, images) {
    const before = conversation.messages;
    const n = before.length - index;
    conversation.messages = before.slice(0, index);
    if (text === undefined)
        ask();
    else
        say(text, images);
    if (n > (text === undefined ? 1 : 2))
        notice(`${n} messages were replaced.`, "Undo", () => {
            leave();
            conversation.messages = before;
            keep();
            thread.show(before);
        });
}

function copy(text) {
    navigator.clipboard.writeText(text).then(() => announcer.tell("Copied."),
        () => notice("The browser does not let this page copy."));
}

function act(what, index) {
    const message = conversation.messages[index];
    if (what === "copy") {
        copy(message.text);
    } else if (answer) {
        notice("An answer is coming. Stop it first.");
    } else if (what === "retry") {
        again(index);
        $("send").focus();
    } else {
        const view = thread.views[index];
        view.edit(message, (text, images) => {
            if (text === null) {
                view.focusTool();
                return;
            }
            again(index, text, images);
            $("send").focus();
        });
    }
}

// ---- composing ------------------------------------------------------------------------------

function grow() {
    const area = $("message");
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
}

function showAttached() {
    $("attached").replaceChildren(...pictures(attached, (i) => {
        attached = attached.filter((_, k) => k !== i);
        showAttached();
        $("attach").focus();
    }));
    $("attached").hidden = !attached.length;
}

// Why the model would not see an image; null: it would, or nobody has told yet.
function blind() {
    const reason = model?.waste_chat?.no_images;
    return reason ? `This server sees no images: ${reason}.` : null;
}

// It can be reached all the same: a button that is disabled would not tell a keyboard why.
function showBlind() {
    const reason = blind();
    $("attach").setAttribute("aria-disabled", Boolean(reason));
    $("attach").title = reason ?? "";
}

async function attach(files) {
    if (blind()) {
        notice(blind());
        return;
    }
    for (const file of files) {
        try {
            attached.push(await shrink(file));
        } catch {
            notice(`${file.name} is no image that this browser can read.`);
        }
    }
    showAttached();
}

$("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (answer) {
        stop();
        return;
    }
    const text = $("message").value.trim();
    if (!text && !attached.length)
        return;
    const images = attached;
    attached = [];
    showAttached();
    $("message").value = "";
    grow();
    say(text, images);
});
$("message").addEventListener("input", grow);
$("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !answer) {
        event.preventDefault();
        $("composer").requestSubmit();
    }
});
$("message").addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files].filter((f) => f.type.startsWith("image/"));
    if (files.length) {
        event.preventDefault();
        attach(files);
    }
});
$("attach").addEventListener("click", () => blind() ? notice(blind()) : $("file").click());
$("file").addEventListener("change", () => {
    attach([...$("file").files]);
    $("file").value = "";
});
$("messages").addEventListener("click", (event) => {
    const button = event.target.closest(".copy-code");
    if (button)
        copy(button.closest("figure").querySelector("code").textContent);
});

// ---- settings and key -----------------------------------------------------------------------

function number(id) {
    const field = $(id);
    return field.value === "" || !field.checkValidity() ? undefined : field.valueAsNumber;
}

function readSettings() {
    conversations.settings.set({system: $("set-system").value.trim() || undefined,
                                temperature: number("set-temperature"),
                                tokens: number("set-tokens"),
                                effort: $("set-effort").value || undefined});
}

function showSettings() {
    const s = conversations.settings.get();
    $("set-system").value = s.system ?? "";
    $("set-temperature").value = s.temperature ?? "";
    $("set-tokens").value = s.tokens ?? "";
    $("set-effort").value = s.effort ?? "";
}

$("settings").addEventListener("change", readSettings);
$("toggle-settings").addEventListener("click", () => panel("settings", $("settings").hidden));

function askKey() {
    if (!$("ask-key").open)
        $("ask-key").showModal();
}

$("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set($("key").value.trim(), $("key-keep").checked);
    $("key").value = "";
    $("ask-key").close();
    meet();
});
$("key-cancel").addEventListener("click", () => $("ask-key").close());

// ---- panels ---------------------------------------------------------------------------------

const engine = new EnginePanel($("engine"), {onError: (e) => e.status === 401 && askKey()});

function panel(id, shown) {
    $(id).hidden = !shown;
    $(`toggle-${id}`).setAttribute("aria-expanded", shown);
    if (shown && !WIDE.matches && id !== "settings")
        panel(id === "list" ? "engine" : "list", false);
    if (id === "engine")
        engine.watch(shown);
    document.body.classList.toggle(`with-${id}`, shown);
}

for (const id of ["list", "engine"]) {
    $(`toggle-${id}`).addEventListener("click", () => panel(id, $(id).hidden));
    $(id).addEventListener("keydown", (event) => {
        if (event.key === "Escape" && !WIDE.matches) {
            panel(id, false);
            $(`toggle-${id}`).focus();
        }
    });
}
$("new").addEventListener("click", () => {
    show(conversations.create());
    $("message").focus();
});
addEventListener("storage", showList);
addEventListener("pagehide", () => {
    leaving = true;
    if (answer)
        conversations.save(conversation);
});
addEventListener("pageshow", (event) => {
    if (event.persisted) // back from the browser's memory, the requests of before are gone
        location.reload();
});

// ---- beginning ------------------------------------------------------------------------------

const RETRY_MS = 3000;

// Ask who is there, until somebody is.
async function meet() {
    try {
        [model] = (await getJson("/v1/models")).data;
        const health = await getJson("/health");
        $("model").textContent = model.id;
        $("effort-row").hidden = !model.waste_chat?.thinking;
        showBlind();
        state("ok", health.phase === "ready" ? "ready" : health.phase);
        if (!$("engine").hidden)
            engine.watch(true);
    } catch (e) {
        if (e.status === 401) {
            state("bad", "a key is needed");
            askKey();
            return;
        }
        state("bad", e.status === 503 ? "loading" : e.message);
        setTimeout(meet, RETRY_MS);
    }
}

function begin() {
    showSettings();
    const id = location.hash.slice(1) || conversations.list()[0]?.id;
    show((id && conversations.load(id)) || conversations.create());
    panel("list", WIDE.matches);
    panel("engine", WIDE.matches);
    $("message").focus();
    meet();
}

begin();
