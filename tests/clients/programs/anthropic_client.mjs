// Anthropic's client for Node.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { LONG_ANSWER, MODEL, SCHEMA, URL, idle, raises, run, valid } from "./cases.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "unused", maxRetries: 0 });
const tools = [{ name: "get_weather", input_schema: SCHEMA }];
const Weather = z.object({ city: z.string(), days: z.number().int() });
const user = (content) => [{ role: "user", content }];

await run({
  async messages(prompt) {
    const answer = await client.messages.create({
      model: MODEL, messages: user(prompt), max_tokens: 8,
    });
    assert.ok(answer.content[0].text);
    assert.equal(answer.usage.output_tokens, 8);
  },
  async stream(prompt) {
    const events = client.messages.stream({ model: MODEL, messages: user(prompt), max_tokens: 8 });
    const message = await events.finalMessage();
    assert.ok(message.content[0].text);
    assert.equal(message.usage.output_tokens, 8);
  },
  async tools(prompt) {
    const asked = { model: MODEL, tools, max_tokens: 200 };
    const messages = user(prompt);
    const message = await client.messages.create({ ...asked, messages });
    assert.equal(message.stop_reason, "tool_use");
    valid(message.content[0].input);
    const streamed = await client.messages.stream({ ...asked, messages }).finalMessage();
    assert.deepEqual(streamed.content[0].input, message.content[0].input);
    const result = { type: "tool_result", tool_use_id: message.content[0].id, content: "rain" };
    const answer = await client.messages.create({
      ...asked, max_tokens: 8,
      messages: [
        ...messages,
        { role: "assistant", content: message.content },
        { role: "user", content: [result] },
      ],
    });
    assert.ok(answer.content[0].text);
  },
  async "structured output"(prompt) {
    const answer = await client.messages.parse({
      model: MODEL, messages: user(prompt), max_tokens: 200,
      output_config: { format: zodOutputFormat(Weather) },
    });
    valid(answer.parsed_output);
  },
  async "count tokens"(prompt) {
    const counted = await client.messages.countTokens({ model: MODEL, messages: user(prompt) });
    assert.ok(counted.input_tokens > 0);
  },
  async "wrong model"(prompt) {
    await raises(404, client.messages.create({
      model: "no-such-model", messages: user(prompt), max_tokens: 8,
    }));
  },
  async abort(prompt) {
    const events = await client.messages.create({
      model: MODEL, messages: user(LONG_ANSWER + prompt), max_tokens: 30_000, stream: true,
    });
    await events[Symbol.asyncIterator]().next();
    await idle(() => events.controller.abort());
  },
});
