// check.mjs URL NAME - one check of a real client against the server at URL. Exit code 0: it passed.
// Tests are called by name, so that each is a test of its own in pytest.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import {ChatOpenAI} from "@langchain/openai";
import {generateObject, generateText, jsonSchema, streamText, tool} from "ai";
import OpenAI from "openai";
import {zodResponseFormat} from "openai/helpers/zod";
import {z} from "zod";

const [url, name] = process.argv.slice(2);
const openai = new OpenAI({baseURL: url + "/v1", apiKey: "none", maxRetries: 0});
const model = "demo";
const messages = [{role: "user", content: "What is the capital of France?"}];
const parameters = {type: "object", properties: {city: {enum: ["Rome"]}}, required: ["city"],
    additionalProperties: false};
const tools = [{type: "function", function: {name: "weather", parameters}}];
// The demonstration model calls nothing of its own accord.
const required = {tool_choice: "required", parallel_tool_calls: false, max_tokens: 200};
const forced = (extra) => ({fetch: (input, init) => fetch(input, {
    ...init, body: init?.body && JSON.stringify({...JSON.parse(init.body), ...extra})})});
const compatible = (extra) => createOpenAICompatible({
    name: "waste", baseURL: url + "/v1", includeUsage: true, supportsStructuredOutputs: true,
    ...forced(extra)})(model);
const langchain = (extra = {}) => new ChatOpenAI({
    model, apiKey: "none", maxTokens: 60, maxRetries: 0,
    configuration: {baseURL: url + "/v1", ...forced(extra)}});

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const pixelUrl = "data:image/png;base64," + PIXEL;
const shown = [{role: "user", content: [{type: "image_url", image_url: {url: pixelUrl, detail: "low"}},
    {type: "text", text: "What is this?"}]}];

// Those whose names begin with sees_ want a server that sees images.
const checks = {
    async openai_chat() {
        const r = await openai.chat.completions.create({model, messages, max_completion_tokens: 10});
        assert.ok(r.choices[0].message.content.length > 5);
        assert.equal(r.usage.completion_tokens, 10);
        assert.equal((await openai.models.list()).data[0].id, model);
    },
    async openai_stream() {
        const whole = await openai.chat.completions.create({model, messages, max_tokens: 20});
        const stream = openai.chat.completions.stream({
            model, messages, max_tokens: 20, stream_options: {include_usage: true}});
        const final = await stream.finalChatCompletion();
        assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
        assert.equal(final.usage.completion_tokens, 20);
    },
    async openai_tools() {
        const r = await openai.chat.completions.create({
            model, messages, tools, ...required});
        const [call] = r.choices[0].message.tool_calls;
        assert.deepEqual(JSON.parse(call.function.arguments), {city: "Rome"});
        const next = await openai.chat.completions.create({
            model, tools, max_tokens: 5, messages: [...messages, r.choices[0].message,
                {role: "tool", tool_call_id: call.id, content: "rain"}]});
        assert.equal(next.usage.completion_tokens, 5);
        const stream = openai.chat.completions.stream({
            model, messages, tools, ...required});
        const final = await stream.finalChatCompletion();
        assert.deepEqual(final.choices[0].message.tool_calls[0].function, call.function);
        assert.equal(final.choices[0].finish_reason, "tool_calls");
    },
    async openai_parse() {
        const Person = z.object({name: z.enum(["Ann", "Bob"]), age: z.number().int()});
        const r = await openai.chat.completions.parse({
            model, messages, max_tokens: 200, response_format: zodResponseFormat(Person, "person")});
        assert.ok(["Ann", "Bob"].includes(r.choices[0].message.parsed.name));
        assert.ok(Number.isInteger(r.choices[0].message.parsed.age));
    },
    async openai_completions() {
        const stream = await openai.completions.create({
            model, prompt: "Once upon a", max_tokens: 8, stream: true});
        let text = "";
        for await (const chunk of stream) text += chunk.choices[0].text;
        assert.ok(text.length > 5);
    },
    async openai_responses() {
        const r = await openai.responses.create({model, input: "Hello!", max_output_tokens: 16});
        assert.ok(r.output_text.length > 5);
        assert.equal(r.status, "incomplete");
        const stream = openai.responses.stream({model, input: "Hello!", max_output_tokens: 16});
        let text = "";
        for await (const e of stream) if (e.type === "response.output_text.delta") text += e.delta;
        assert.equal(text, r.output_text);
        assert.equal((await stream.finalResponse()).output_text, text);
    },
    async openai_images_are_refused() {
        await assert.rejects(openai.chat.completions.create({model, messages: shown}),
            (e) => e instanceof OpenAI.BadRequestError && e.code === "vision_disabled");
    },
    async sees_openai() {
        const whole = await openai.chat.completions.create({model, messages: shown, max_tokens: 8});
        let text = "";
        for await (const chunk of await openai.chat.completions.create({
            model, messages: shown, max_tokens: 8, stream: true}))
            text += chunk.choices[0].delta.reasoning_content ?? "";
        assert.equal(text, whole.choices[0].message.reasoning_content);
        const again = await openai.chat.completions.create({model, max_tokens: 8, messages: [
            ...shown, whole.choices[0].message, {role: "user", content: "And now?"}]});
        const {cached_tokens} = again.usage.prompt_tokens_details, read = whole.usage.prompt_tokens;
        assert.ok(cached_tokens > read - 40, `${cached_tokens} of ${read}`);
        const response = await openai.responses.create({model, max_output_tokens: 8, input: [
            {role: "user", content: [{type: "input_image", image_url: pixelUrl, detail: "auto"},
                {type: "input_text", text: "What is this?"}]}]});
        assert.equal(response.usage.input_tokens, whole.usage.prompt_tokens);
        shown[0].content[0].image_url.url = "https://example.test/a.png";
        await assert.rejects(openai.chat.completions.create({model, messages: shown}), (e) =>
            e instanceof OpenAI.BadRequestError && e.param === "messages[0].content[0]");
    },
    async sees_ai() {
        const content = [{type: "image", image: Buffer.from(PIXEL, "base64"), mediaType: "image/png"},
            {type: "text", text: "What is this?"}];
        const r = await generateText({model: compatible({}), maxOutputTokens: 8,
            messages: [{role: "user", content}]});
        const whole = await openai.chat.completions.create({model, messages: shown, max_tokens: 8});
        assert.equal(r.usage.inputTokens, whole.usage.prompt_tokens);
    },
    async sees_langchain() {
        const r = await langchain({maxTokens: 8}).invoke([{role: "user", content: shown[0].content}]);
        const whole = await openai.chat.completions.create({model, messages: shown, max_tokens: 8});
        assert.equal(r.usage_metadata.input_tokens, whole.usage.prompt_tokens);
    },
    async sees_anthropic() {
        const client = new Anthropic({baseURL: url, apiKey: "none", maxRetries: 0});
        const body = {model, max_tokens: 8, messages: [{role: "user", content: [
            {type: "image", source: {type: "base64", media_type: "image/png", data: PIXEL}},
            {type: "text", text: "What is this?"}]}]};
        const r = await client.messages.create(body);
        const whole = await openai.chat.completions.create({model, messages: shown, max_tokens: 8});
        assert.equal(r.content[0].thinking, whole.choices[0].message.reasoning_content);
        const {input_tokens} = await client.messages.countTokens({model, messages: body.messages});
        assert.equal(input_tokens, whole.usage.prompt_tokens);
        body.messages[0].content[0].source = {type: "url", url: "https://example.test/a.png"};
        await assert.rejects(client.messages.create(body), Anthropic.BadRequestError);
    },
    async openai_errors() {
        await assert.rejects(openai.chat.completions.create({model, messages, temperature: 7}),
            (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
        await assert.rejects(openai.models.retrieve("other"), OpenAI.NotFoundError);
    },
    async openai_abort() {
        const stream = await openai.chat.completions.create({
            model, messages, max_tokens: 3900, stream: true, logit_bias: {4098: -100}});
        for await (const _ of stream) break;  // leaves, and aborts
        for (let i = 0; i < 500; i++) {
            const h = await (await fetch(url + "/health")).json();
            if (!h.answering && !h.prefilling && !h.queued) return;
            await new Promise((r) => setTimeout(r, 20));
        }
        assert.fail("the slot is still taken");
    },
    async ai_text() {
        const r = await generateText({model: compatible({}), prompt: "Hello!", maxOutputTokens: 12});
        assert.ok(r.text.length > 5);
        const s = streamText({model: compatible({}), prompt: "Hello!", maxOutputTokens: 12});
        let text = "";
        for await (const part of s.textStream) text += part;
        assert.equal(text, r.text);
        assert.equal((await s.usage).outputTokens, 12);
    },
    async ai_tools() {
        const r = await generateText({model: compatible(required), prompt: "Weather?",
            tools: {weather: tool({inputSchema: jsonSchema(parameters)})}});
        assert.deepEqual(r.toolCalls[0].input, {city: "Rome"});
        const s = streamText({model: compatible(required), prompt: "Weather?",
            tools: {weather: tool({inputSchema: jsonSchema(parameters)})}});
        await s.consumeStream();
        assert.deepEqual((await s.toolCalls)[0].input, {city: "Rome"});
    },
    async ai_object() {
        const r = await generateObject({model: compatible({}), prompt: "Who?", maxOutputTokens: 200,
            schema: z.object({name: z.enum(["Ann", "Bob"])})});
        assert.ok(["Ann", "Bob"].includes(r.object.name));
    },
    async langchain_chat() {
        const r = await langchain().invoke("Hello!");
        assert.ok(r.content.length > 5);
        let text = "", last;
        for await (const chunk of await langchain().stream("Hello!")) {
            text += chunk.content;
            last = chunk.usage_metadata ?? last;
        }
        assert.equal(text, r.content);
        assert.ok(last.output_tokens > 0);
    },
    async langchain_tools() {
        const r = await langchain(required).bindTools(tools).invoke("Weather?");
        assert.deepEqual(r.tool_calls[0].args, {city: "Rome"});
        assert.ok(r.tool_calls[0].id);
    },
    async langchain_structured() {
        const schema = z.object({name: z.enum(["Ann", "Bob"])});
        const r = await langchain({max_tokens: 200}).withStructuredOutput(
            schema, {method: "jsonSchema"}).invoke("Who?");
        assert.ok(["Ann", "Bob"].includes(r.name));
    },
    async anthropic() {
        const client = new Anthropic({baseURL: url, apiKey: "none", maxRetries: 0});
        const body = {model, max_tokens: 20, messages, system: "Be brief."};
        const r = await client.messages.create(body);
        assert.equal(r.stop_reason, "max_tokens");
        const stream = client.messages.stream(body);
        const final = await stream.finalMessage();
        assert.equal(final.content[0].text, r.content[0].text);
        assert.equal(final.usage.output_tokens, 20);
        const count = await client.messages.countTokens({model, messages, system: "Be brief."});
        const u = r.usage;
        assert.equal(count.input_tokens, u.input_tokens + u.cache_read_input_tokens);
        const tool_ = {name: "weather", input_schema: parameters};
        const any = {tool_choice: {type: "any", disable_parallel_tool_use: true}, max_tokens: 200};
        const called = await client.messages.create({...body, tools: [tool_], ...any});
        const use = called.content.find((b) => b.type === "tool_use");
        assert.deepEqual(use.input, {city: "Rome"});
        const streamed = await client.messages.stream({...body, tools: [tool_], ...any})
            .finalMessage();
        assert.deepEqual(streamed.content.find((b) => b.type === "tool_use").input, {city: "Rome"});
        const next = await client.messages.create({...body, tools: [tool_], messages: [...messages,
            {role: "assistant", content: called.content},
            {role: "user", content: [{type: "tool_result", tool_use_id: use.id, content: "rain"}]}]});
        assert.equal(next.usage.output_tokens, 20);
        await assert.rejects(client.messages.create({...body, temperature: 9}),
            Anthropic.BadRequestError);
    },
};

if (!name) {
    console.log(Object.keys(checks).join("\n"));
} else {
    await checks[name]();
    process.exit(0);  // sockets kept alive are nobody's business
}
