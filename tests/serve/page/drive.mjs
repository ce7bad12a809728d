// drive.mjs - the page in a real browser. Prints a JSON line for each check: {name, failed: null|text}.
//
//     node drive.mjs PORT KEYED_PORT THINKING_PORT SEEING_PORT
//
// Servers: one without keys and two sessions, one that asks for $KEY, both with the demonstration
// model; one whose model thinks, if requests have the members of $THINKS; one that sees. $CHROMIUM is the browser,
// $MODULES has node_modules with playwright-core and axe-core, $SHOTS is a directory for pictures,
// $ONLY a part of the names of the checks to run.

import {createRequire} from "node:module";
import {mkdirSync, readFileSync} from "node:fs";
import path from "node:path";

const [OWN, KEYED, THINKING, SEEING] = process.argv.slice(2).map((port) => `http://127.0.0.1:${port}`);
const {CHROMIUM, KEY, MODULES, ONLY, SHOTS, THINKS} = process.env;
const require = createRequire(path.join(MODULES, "node_modules", "x.js"));
const {chromium} = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const LONG = "Hello, Emma. Tell me about whales."; // its answer does not end by itself

const SIZES = {desktop: {width: 1400, height: 900}, phone: {width: 390, height: 844}};

function equal(got, want, what) {
    if (JSON.stringify(got) !== JSON.stringify(want))
        throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

function ok(truth, what) {
    if (!truth)
        throw new Error(what);
}

// ---- what a person does -----------------------------------------------------------------------

async function open(browser, {size = "desktop", dark = false, url = OWN, quiet = false} = {}) {
    const context = await browser.newContext({viewport: SIZES[size], reducedMotion: "reduce",
                                              colorScheme: dark ? "dark" : "light",
                                              hasTouch: size === "phone"});
    const page = await context.newPage();
    page.problems = [];
    page.on("pageerror", (e) => page.problems.push(`exception: ${e.message}`));
    page.on("console", (m) => {
        const refused = quiet && m.text().startsWith("Failed to load resource");
        if (["error", "warning"].includes(m.type()) && !refused)
            page.problems.push(`${m.type()}: ${m.text()}`);
    });
    await page.goto(url);
    return page;
}

async function send(page, text) {
    await page.getByLabel("Message", {exact: true}).fill(text);
    await page.keyboard.press("Enter");
}

const answers = (page) => page.locator("article.assistant");
const last = (page) => answers(page).last();
const finished = (page) => page.getByRole("button", {name: "Send"}).waitFor();
const limit = async (page, n) => {
    await page.getByRole("button", {name: "Settings"}).click();
    await page.getByLabel("Most tokens").fill(String(n));
    await page.getByLabel("Most tokens").press("Tab");
    await page.getByRole("button", {name: "Settings"}).click();
};

async function talk(page, text, n = 24) {
    await limit(page, n);
    await send(page, text);
    await last(page).locator(".usage").waitFor();
    await finished(page);
}

const texts = (page) => page.locator("article .plain, article .markdown").allInnerTexts();

async function answering() {
    const health = await (await fetch(`${OWN}/health`)).json();
    return health.queued + health.prefilling + health.answering;
}

async function until(condition, what) {
    for (let i = 0; i < 100; i++) {
        if (await condition())
            return;
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`never: ${what}`);
}

// A sample of an engine as large as they come.
function large() {
    const columns = ["n", "at", "prefill_rows", "decode_rows", "ms", "bytes_read", "io", "experts",
                     "mix", "mlp", "route", "checks", "head", "other"];
    const passes = Array.from({length: 60}, (_, i) =>
        [i + 1, i, 0, 1, 1600, 4e9, 800, 300, 200, 100, 50, 50, 50, 50]);
    const map = Array.from({length: 897}, (_, i) => "201"[(i * 7 + (i >> 4)) % 3]).join("");
    const layers = Array.from({length: 60}, (_, i) => ({
        layer: i + 1, experts: 897, hits_resident: 600 - 5 * i, hits_prefetch: 200, misses: 5 * i,
        resident: 299, reading: 299, map}));
    return {now: 60, phase: "ready", queued: 3, prefilling: 1, answering: 1, sessions: 2, columns,
            passes, layers, engine: {
                arch: "large", n_layers: 61, n_experts: 897, top_k: 16, budget_bytes: 46 * 2 ** 30,
                n_frames: 2400, frame_bytes: 12 * 2 ** 20, io_engine: "io_uring", io_depth: 64,
                n_banks: 60, n_banks_direct: 60, n_threads: 32, kernels: "avx512", numeric: "i16",
                policy: "nextuse", lookahead: 6, drive_bytes_per_s: 5e9}};
}

// ---- checks -----------------------------------------------------------------------------------

const checks = {
    async "an answer comes in pieces, and with what it took"(browser) {
        const page = await open(browser);
        await limit(page, 1500);
        await page.evaluate(() => {
            window.lengths = new Set();
            new MutationObserver(() => window.lengths.add(
                document.querySelector("[aria-busy=true] .markdown")?.textContent.length))
                .observe(document.getElementById("messages"),
                         {subtree: true, childList: true, characterData: true});
        });
        await send(page, LONG);
        await last(page).locator(".usage").waitFor();
        const lengths = await page.evaluate(() => [...window.lengths].filter((n) => n > 0));
        ok(lengths.length > 2, `what was seen of the answer before it was whole: ${lengths}`);
        const usage = await last(page).locator(".usage").innerText();
        for (const word of [" in, ", " cached", " out", " tok/s", " read"])
            ok(usage.includes(word), `no ${word} in ${usage}`);
        equal(await page.locator("#said").getAttribute("aria-live"), "polite", "aria-live");
        ok((await page.locator("#said").innerText()).length > 0, "nothing was said");
        return page;
    },

    async "stopping ends the work and keeps what has come"(browser) {
        const page = await open(browser);
        await send(page, LONG);
        await last(page).locator(".markdown > *").first().waitFor();
        await page.getByRole("button", {name: "Stop"}).click();
        await page.getByText("Stopped.", {exact: true}).first().waitFor();
        await finished(page);
        ok((await last(page).locator(".markdown").innerText()).length > 0, "nothing was kept");
        await until(async () => await answering() === 0, "the server is still answering");
        return page;
    },

    async "a retry replaces the answer"(browser) {
        const page = await open(browser);
        await talk(page, "What did Mr. Knightley say?");
        const before = await texts(page);
        await last(page).getByRole("button", {name: "Retry"}).click();
        await last(page).locator(".usage").waitFor();
        await finished(page);
        equal(await texts(page), before, "the same question at temperature 0");
        return page;
    },

    async "an earlier message can be edited, and that undone"(browser) {
        const page = await open(browser);
        await talk(page, "First.");
        await talk(page, "Second.");
        const before = await texts(page);
        await page.getByRole("button", {name: "Edit: You, message 1"}).click();
        await page.getByLabel("Edit message 1").fill("Another first.");
        await page.keyboard.press("Enter");
        await last(page).locator(".usage").waitFor();
        await finished(page);
        equal((await texts(page)).length, 2, "messages left");
        equal((await texts(page))[0], "Another first.", "the message");
        await page.getByRole("button", {name: "Undo"}).click();
        equal(await texts(page), before, "after undoing");
        return page;
    },

    async "Escape leaves a message as it was"(browser) {
        const page = await open(browser);
        await talk(page, "First.");
        await page.getByRole("button", {name: "Edit: You, message 1"}).click();
        await page.keyboard.type(" and more");
        await page.keyboard.press("Escape");
        equal((await texts(page))[0], "First.", "the message");
        equal(await page.evaluate(() => document.activeElement.textContent), "Edit", "focus");
        return page;
    },

    async "a reload brings everything back, also what was coming"(browser) {
        const page = await open(browser);
        await talk(page, "Remember this.");
        const before = await texts(page);
        await page.reload();
        await last(page).waitFor();
        equal(await texts(page), before, "after the reload");
        await limit(page, 4000);
        await send(page, LONG);
        await last(page).locator(".markdown > *").first().waitFor();
        await page.reload();
        await page.getByText("broken off: the page was closed").waitFor();
        equal((await texts(page)).length, 4, "messages");
        await until(async () => await answering() === 0, "the server is still answering");
        return page;
    },

    async "conversations are kept apart, deleted and brought back"(browser) {
        const page = await open(browser);
        await talk(page, "One.");
        await page.getByRole("button", {name: "New conversation"}).click();
        equal((await texts(page)).length, 0, "messages of a new conversation");
        await talk(page, "Two.");
        const list = page.getByRole("navigation", {name: "Conversations"});
        equal(await list.locator(".open").allInnerTexts(), ["Two.", "One."], "the list");
        await list.getByRole("button", {name: "One.", exact: true}).click();
        equal((await texts(page))[0], "One.", "the first again");
        await list.getByRole("button", {name: "Delete: One."}).click();
        equal((await texts(page)).length, 0, "messages after deleting");
        equal(await list.locator(".open").allInnerTexts(), ["Two."], "the list after deleting");
        await page.getByRole("button", {name: "Undo"}).click();
        equal((await texts(page))[0], "One.", "brought back");
        return page;
    },

    async "leaving a conversation while it is answered crosses nothing"(browser) {
        const page = await open(browser);
        await send(page, LONG);
        await last(page).locator(".markdown > *").first().waitFor();
        await page.getByRole("button", {name: "New conversation"}).click();
        await talk(page, "Two.", 8);
        equal((await texts(page)).length, 2, "messages of the second");
        await page.getByRole("navigation").getByRole("button", {name: LONG.slice(0, 20)}).first().click();
        const first = await texts(page);
        equal([first.length, first[0]], [2, LONG], "the first");
        ok(first[1].length > 0, "what had come is kept");
        return page;
    },

    async "a server that sees no images takes none, and says why"(browser) {
        const page = await open(browser);
        const button = page.getByRole("button", {name: "Attach image"});
        await until(async () => await button.getAttribute("aria-disabled") === "true", "it is off");
        equal(await button.getAttribute("title"),
              "This server sees no images: the model has no vision tower.", "the title");
        await button.click({force: true});
        const told = page.getByRole("alert").getByText("the model has no vision tower");
        await told.waitFor();
        await page.getByRole("button", {name: "Dismiss"}).click();
        await page.locator("#file").setInputFiles({name: "dot.png", mimeType: "image/png",
                                                   buffer: Buffer.from(PIXEL, "base64")});
        await told.waitFor();
        equal(await page.getByAltText("Attached image 1").count(), 0, "images that are attached");
        return page;
    },

    async "an image of another server's days is refused in words, and can be removed"(browser) {
        const page = await open(browser, {quiet: true});
        await page.route("**/v1/models", async (route) => {
            const response = await route.fetch();
            const value = await response.json();
            delete value.data[0].waste_chat.no_images;
            await route.fulfill({response, json: value});
        });
        await page.reload();
        await page.getByText("ready", {exact: true}).waitFor();
        await limit(page, 8);
        await page.locator("#file").setInputFiles({name: "dot.png", mimeType: "image/png",
                                                   buffer: Buffer.from(PIXEL, "base64")});
        await page.getByAltText("Attached image 1").waitFor();
        await send(page, "What is this?");
        await last(page).getByText("This server does not see images").waitFor();
        await finished(page);
        await page.getByRole("button", {name: "Edit: You, message 1"}).click();
        await page.getByRole("button", {name: "Remove image 1"}).click();
        await page.keyboard.press("Enter");
        await last(page).locator(".usage").waitFor();
        return page;
    },

    async "an image is seen, and both stay after a reload"(browser) {
        const page = await open(browser, {url: SEEING});
        const button = page.getByRole("button", {name: "Attach image"});
        await until(async () => await button.getAttribute("aria-disabled") === "false", "it is on");
        equal(await button.getAttribute("title"), "", "its title");
        await limit(page, 8);
        await page.locator("#file").setInputFiles([1, 2].map((i) => ({
            name: `dot${i}.png`, mimeType: "image/png", buffer: Buffer.from(PIXEL, "base64")})));
        await page.getByAltText("Attached image 2").waitFor();
        await page.getByRole("button", {name: "Remove image 2"}).click();
        await talk(page, "What is this?", 8);
        const told = async () => [await last(page).locator(".thought").textContent(),
                                  await page.locator("article img").count()];
        const numbers = async (pattern) =>
            Number(pattern.exec(await last(page).locator(".usage").innerText())[1]);
        const [before, read] = [await told(), await numbers(/^(\d+) in/)];
        ok(before[0].trim().length > 0 && before[1] === 1, `answer and pictures: ${before}`);
        await page.reload();
        await last(page).waitFor();
        equal(await told(), before, "after the reload");
        await talk(page, "And now?", 8);
        const cached = await numbers(/(\d+) of them cached/);
        ok(cached > read - 40, `of ${read} positions only ${cached} were found again`);
        return page;
    },

    async "a server with keys is asked with the key"(browser) {
        const page = await open(browser, {url: KEYED, quiet: true});
        await page.getByLabel("Key", {exact: true}).fill("not " + KEY);
        await page.keyboard.press("Enter");
        await page.getByText("a key is needed").waitFor();
        await page.getByLabel("Key", {exact: true}).fill(KEY);
        await page.keyboard.press("Enter");
        await page.getByText("ready", {exact: true}).waitFor();
        await talk(page, "Hello.", 8);
        await page.locator("#facts dd").first().waitFor();
        return page;
    },

    async "thinking is told apart from the answer, and folded"(browser) {
        const page = await open(browser, {url: THINKING});
        await page.route("**/v1/chat/completions", (route) => route.continue({
            postData: JSON.stringify({...route.request().postDataJSON(), ...JSON.parse(THINKS)})}));
        await talk(page, "Think of something.", 200);
        const [thought, text] = [last(page).locator(".thought"), last(page).locator(".markdown")];
        ok(/^[A-Z]{3}$/.test((await text.innerText()).trim()), `answer: ${await text.innerText()}`);
        ok(!await thought.isVisible(), "it is not folded");
        await last(page).locator("summary").click();
        ok((await thought.innerText()).trim().length > 0, "no thought");
        ok((await last(page).locator(".usage").innerText()).includes(" thinking"), "usage");
        return page;
    },

    async "who waits is told how many are before"(browser) {
        const page = await open(browser);
        const others = new AbortController();
        const busy = [0, 1].map(() => fetch(`${OWN}/v1/chat/completions`, {
            method: "POST", signal: others.signal,
            body: JSON.stringify({stream: true, messages: [{role: "user", content: LONG}]})}));
        await Promise.all(busy);
        await until(async () => await answering() === 2, "two are answered");
        await send(page, LONG);
        await last(page).getByText("Waiting: next").waitFor();
        await until(async () => await page.locator("#f-queued").innerText() === "1", "the panel's queue");
        others.abort();
        await last(page).locator(".markdown > *").first().waitFor();
        await page.getByRole("button", {name: "Stop"}).click();
        await finished(page);
        return page;
    },

    async "a server that goes says so, and what had come stays"(browser) {
        const page = await open(browser, {quiet: true});
        await talk(page, "One.", 8);
        await page.route("**/v1/chat/completions", (route) => route.abort());
        await send(page, "Two.");
        await last(page).getByText("the server cannot be reached").waitFor();
        equal((await texts(page)).slice(0, 1), ["One."], "the first message");
        await page.unroute("**/v1/chat/completions");
        await last(page).getByRole("button", {name: "Retry"}).click();
        await last(page).locator(".usage").waitFor();
        return page;
    },

    async "an engine of sixty layers with a measured drive fits the panel"(browser) {
        const page = await open(browser);
        await page.route("**/live", (route) => route.fulfill({
            contentType: "text/event-stream", body: `data: ${JSON.stringify(large())}\n\n`}));
        await page.reload();
        await page.getByText("2.5 GB/s in the last 20 passes, 50 % of 5 GB/s.").waitFor();
        await page.getByText("1.6 s a token lately: 50 % waiting for reads").waitFor();
        await page.getByText("17,940 of 53,820 (33 %) are in memory").waitFor();
        await page.waitForTimeout(200);
        const wide = await page.evaluate(() => document.getElementById("engine").scrollWidth -
            document.getElementById("engine").clientWidth);
        equal(wide, 0, "pixels that the panel is too narrow");
        await page.locator("#experts").hover({position: {x: 26.5, y: 7.5}});
        equal(await page.locator("#experts").getAttribute("title"),
              "Layer 1, expert 227: on disk", "what is under the pointer");
        if (SHOTS)
            await page.locator("#engine").screenshot({path: path.join(SHOTS, "large-engine.png")});
        return page;
    },

    async "markup in an answer stays text"(browser) {
        const page = await open(browser);
        const made = await page.evaluate(async () => {
            const {MarkdownView} = await import("/page/markdown.js");
            const root = document.createElement("div");
            const hostile = "<img src=x onerror=alert(1)> [a](javascript:alert(1)) " +
                "[b](https://x.test/?\"onclick=\"1) <script>1</script>\n\n```html\n<b>x</b>\n```\n" +
                "\n| a | b |\n|---|---|\n| *1* | `2` |\n\n1. one\n2. **two**\n   - three\n\n> q\n";
            new MarkdownView(root).update(hostile);
            return {elements: [...new Set([...root.querySelectorAll("*")].map((e) => e.localName))].sort(),
                    links: [...root.querySelectorAll("a")].map((a) => a.protocol),
                    text: root.textContent.includes("<script>1</script>") &&
                          root.textContent.includes("<b>x</b>")};
        });
        ok(made.text, "the text is not all there");
        equal(made.links, ["https:"], "links");
        equal(made.elements.filter((e) => ["img", "script", "b"].includes(e)), [], "elements");
        for (const name of ["table", "ol", "ul", "strong", "em", "blockquote", "pre"])
            ok(made.elements.includes(name), `no ${name}: ${made.elements}`);
        return page;
    },

    async "text that grows gives what the whole text gives, and hostile text takes no time"(browser) {
        const page = await open(browser);
        const result = await page.evaluate(async () => {
            const {MarkdownView} = await import("/page/markdown.js");
            const text = "# A\n\nb *c* d\ne\n\n- f\n- g\n  h\n\n```c\nint i;\n\n```\n\nj | k\n--|--\nl | m\n";
            const grown = new MarkdownView(document.createElement("div"));
            for (let i = 1; i <= text.length; i++)
                grown.update(text.slice(0, i));
            const whole = new MarkdownView(document.createElement("div"));
            whole.update(text);
            const began = performance.now();
            for (const hostile of ["*", "_a", "[", "`", "> ", "- ", "|", "#", "~~", "https://"])
                new MarkdownView(document.createElement("div")).update(hostile.repeat(5000));
            return {same: grown.root.isEqualNode(whole.root), ms: performance.now() - began};
        });
        ok(result.same, "other elements");
        ok(result.ms < 20000, `${result.ms} ms`);
        return page;
    },

    async "the engine is shown while it answers, and not asked when nobody looks"(browser) {
        const page = await open(browser);
        await talk(page, "Let us see what is read.", 120);
        await page.getByText(/tokens? lately: /).waitFor();
        ok(/\d+ of 224/.test(await page.locator("#experts-text").innerText()), "experts in memory");
        const drawn = await page.evaluate(() => ["disk", "time", "experts"].map((id) => {
            const canvas = document.getElementById(id);
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size > 2;
        }));
        equal(drawn, [true, true, true], "canvases with something on them");
        await page.locator("#engine summary").nth(1).click();
        await page.locator("#experts-table tbody tr").first().waitFor();
        equal(await page.locator("#experts-table tbody tr").count(), 7, "layers in the table");
        const gone = page.waitForEvent("requestfailed", (r) => r.url().endsWith("/live"));
        await page.getByRole("button", {name: "Engine"}).click();
        await gone;
        return page;
    },

    async "everything can be reached with the keyboard, in the order it is seen"(browser) {
        const page = await open(browser);
        await talk(page, "Keys.", 8);
        await page.evaluate(() => {
            document.body.tabIndex = -1;
            document.body.focus();
        });
        const seen = [];
        for (let i = 0; i < 40 && seen.at(-1) !== "Send"; i++) {
            await page.keyboard.press("Tab");
            seen.push(await page.evaluate(() => {
                const e = document.activeElement;
                return e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent.trim() ?? e.textContent.trim();
            }));
        }
        const want = ["Skip to the message box", "Conversations", "Engine", "New conversation", "Keys.",
                      "Messages", "Edit: You, message 1", "Retry: Model, message 2", "Message",
                      "Attach image", "Send"];
        equal(seen.filter((s) => want.includes(s)), want, "focus");
        return page;
    },
};

for (const size of Object.keys(SIZES))
    for (const dark of [false, true])
        checks[`axe finds nothing at ${size} width, ${dark ? "dark" : "light"}`] = async (browser) => {
            const page = await open(browser, {size, dark});
            await talk(page, "Does she look out of the window?", 60);
            await page.waitForTimeout(1000); // a sample of the engine
            const views = [["chat", async () => {}]];
            if (size === "phone")
                views.push(["engine", () => page.getByRole("button", {name: "Engine"}).click()],
                           ["list", () => page.getByRole("button", {name: "Conversations"}).click()]);
            for (const [view, show] of views) {
                await show();
                await page.waitForTimeout(view === "engine" ? 1200 : 100);
                if (SHOTS)
                    await page.screenshot({path: path.join(SHOTS, `${size}-${dark ? "dark" : "light"}-${view}.png`)});
                await page.evaluate(AXE); // as a tag the page's policy would refuse it
                const {violations} = await page.evaluate(() => axe.run(document, {
                    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}));
                equal(violations.map((v) => [v.id, v.nodes.map((n) => n.target.join(" "))]), [], view);
                const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
                ok(wide <= 0, `${view}: ${wide} pixels wider than the window`);
            }
            return page;
        };

// -----------------------------------------------------------------------------------------------

if (SHOTS)
    mkdirSync(SHOTS, {recursive: true});
const browser = await chromium.launch({executablePath: CHROMIUM,
                                       args: ["--no-sandbox", "--disable-dev-shm-usage"]});
for (const [name, check] of Object.entries(checks)) {
    if (ONLY && !name.includes(ONLY))
        continue;
    let failed = null;
    try {
        const page = await check(browser);
        equal(page.problems, [], "the browser's console");
    } catch (e) {
        failed = e.stack;
    }
    await Promise.all(browser.contexts().map((c) => c.close()));
    console.log(JSON.stringify({name, failed}));
}
await browser.close();
