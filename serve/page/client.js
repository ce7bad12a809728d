// client.js - the server's interface: requests with a key, event streams as values.

const KEY = "waste.key";

export const key = {
    get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
    set(value, keep) {
        sessionStorage.setItem(KEY, value);
        if (keep)
            localStorage.setItem(KEY, value);
        else
            localStorage.removeItem(KEY);
    },
};

// What the server says went wrong; status 0: it was not reached, or broke off.
export class ServerError extends Error {
    constructor(status, message, {code = null, param = null, retryAfter = null} = {}) {
        super(message);
        Object.assign(this, {status, code, param, retryAfter});
    }
}

async function failure(response) {
    let error = {};
    try {
        error = (await response.json()).error ?? {};
    } catch { // not ours: a balancer's page
    }
    const message = error.message ?? `the server answered ${response.status}`;
    return new ServerError(response.status, message, {
        code: error.code, param: error.param,
        retryAfter: parseInt(response.headers.get("Retry-After"), 10) || null,
    });
}

async function request(path, options = {}) {
    const headers = {...options.headers};
    if (key.get())
        headers.Authorization = `Bearer ${key.get()}`;
    let response;
    try {
        response = await fetch(path, {...options, headers});
    } catch (e) {
        if (e.name === "AbortError")
            throw e;
        throw new ServerError(0, "the server cannot be reached");
    }
    if (!response.ok)
        throw await failure(response);
    return response;
}

export async function getJson(path, signal) {
    return (await request(path, {signal})).json();
}

// Lines of a body as they come.
async function* lines(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
        let part;
        try {
            part = await reader.read();
        } catch (e) {
            if (e.name === "AbortError")
                throw e;
            throw new ServerError(0, "the connection broke off");
        }
        if (part.done)
            return;
        const found = (rest + part.value).split("\n");
        rest = found.pop();
        yield* found;
    }
}

// Values of an event stream; comments come as {comment}. An error in it is thrown.
export async function* stream(path, options) {
    const response = await request(path, options);
    let data = [];
    for await (const line of lines(response.body)) {
        if (line.startsWith("data:"))
            data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith(":"))
            yield {comment: line.slice(1).trim()};
        else if (line === "" || line === "\r") {
            const text = data.join("\n");
            data = [];
            if (text === "[DONE]")
                return;
            if (!text)
                continue;
            const value = JSON.parse(text);
            if (value.error)
                throw new ServerError(value.error.status ?? 0, value.error.message,
                                      value.error);
            yield value;
        }
    }
}

export function chat(body, signal) {
    return stream("/v1/chat/completions", {
        method: "POST", signal, headers: {"Content-Type": "application/json"},
        body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true},
                              return_progress: true}),
    });
}

export function live(signal) {
    return stream("/live", {signal, headers: {Accept: "text/event-stream"}});
}
