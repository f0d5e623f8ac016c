// OpenAI's client for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid } from "./cases.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "unused", maxRetries: 0 });
const FUNCTION = { name: "get_weather", parameters: SCHEMA };
const tools = [{ type: "function", function: FUNCTION }];
const Weather = z.object({ city: z.string(), days: z.number().int() });
const user = (content) => [{ role: "user", content }];

await run({
  async chat(prompt) {
    const answer = await client.chat.completions.create({
      model: MODEL, messages: user(prompt), max_tokens: 8,
    });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.completion_tokens, 8);
  },
  async stream(prompt) {
    let text = "", usage;
    const chunks = await client.chat.completions.create({
      model: MODEL, messages: user(prompt), max_tokens: 8,
      stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of chunks) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.ok(text);
    assert.equal(usage.completion_tokens, 8);
  },
  async completions(prompt) {
    const answer = await client.completions.create({ model: MODEL, prompt, max_tokens: 8 });
    assert.ok(answer.choices[0].text);
  },
  async tools(prompt) {
    const messages = user(prompt);
    const { choices: [choice] } = await client.chat.completions.create({
      model: MODEL, messages, tools,
    });
    assert.equal(choice.finish_reason, "tool_calls");
    const [call] = choice.message.tool_calls;
    valid(call.function.arguments);
    const streamed = await client.chat.completions
      .stream({ model: MODEL, messages, tools }).finalMessage();
    assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments);
    const result = { role: "tool", tool_call_id: call.id, content: "rain" };
    const answer = await client.chat.completions.create({
      model: MODEL, messages: [...messages, choice.message, result], tools, max_tokens: 8,
    });
    assert.ok(answer.choices[0].message.content);
  },
  async "structured output"(prompt) {
    const answer = await client.chat.completions.parse({
      model: MODEL, messages: user(prompt), response_format: zodResponseFormat(Weather, "weather"),
    });
    valid(answer.choices[0].message.parsed);
  },
  async responses(prompt) {
    const asked = { model: MODEL, input: prompt, max_output_tokens: 8 };
    const answer = await client.responses.create(asked);
    assert.ok(answer.output_text);
    const streamed = await client.responses.stream(asked).finalResponse();
    assert.equal(streamed.output_text, answer.output_text);
    const called = await client.responses.stream({
      model: MODEL, input: prompt, tools: [{ type: "function", strict: true, ...FUNCTION }],
    }).finalResponse();
    valid(called.output[0].arguments);
    const parsed = await client.responses.parse({
      model: MODEL, input: prompt, text: { format: zodTextFormat(Weather, "weather") },
    });
    valid(parsed.output_parsed);
  },
  async embeddings(prompt) {
    const answer = await client.embeddings.create({ model: MODEL, input: [prompt, "other"] });
    assert.equal(answer.data[1].embedding.length, 8);
    assert.ok(answer.data[1].embedding.every((number) => Math.abs(number) <= 1));
  },
  async "wrong model"(prompt) {
    await raises(404, client.chat.completions.create({
      model: "no-such-model", messages: user(prompt),
    }));
  },
  async abort(prompt) {
    const chunks = await client.chat.completions.create({
      model: MODEL, messages: user(LONG_ANSWER + prompt), stream: true,
    });
    await chunks[Symbol.asyncIterator]().next();
    await idle(() => chunks.controller.abort());
  },
});
