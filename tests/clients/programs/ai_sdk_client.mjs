// Vercel's AI SDK with its provider for OpenAI-compatible servers.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { LONG_ANSWER, MODEL, URL, idle, raises, run, valid } from "./cases.mjs";

const provider = createOpenAICompatible({
  name: "router", baseURL: `${URL}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(MODEL);
const Weather = z.object({ city: z.string(), days: z.number().int() });
const once = { model, maxOutputTokens: 8, maxRetries: 0 };

await run({
  async chat(prompt) {
    const answer = await generateText({ ...once, prompt });
    assert.ok(answer.text);
    assert.equal(answer.usage.outputTokens, 8);
  },
  async stream(prompt) {
    const answer = streamText({ ...once, prompt });
    let text = "";
    for await (const part of answer.textStream) text += part;
    assert.ok(text);
    assert.equal((await answer.usage).outputTokens, 8);
  },
  async completions(prompt) {
    const answer = await generateText({ ...once, model: provider.completionModel(MODEL), prompt });
    assert.ok(answer.text);
  },
  async tools(prompt) {
    const weather = tool({
      inputSchema: Weather,
      execute(input) {
        valid(input);
        return "rain";
      },
    });
    const asked = {
      model, prompt, maxRetries: 0, maxOutputTokens: 100,
      tools: { weather }, stopWhen: stepCountIs(2),
    };
    const answer = await generateText(asked);
    assert.equal(answer.steps[0].finishReason, "tool-calls");
    assert.ok(answer.text);
    const streamed = streamText(asked);
    await streamed.consumeStream({ onError(error) { throw error; } });
    assert.ok(await streamed.text);
  },
  async "structured output"(prompt) {
    const { object } = await generateObject({ model, prompt, schema: Weather, maxRetries: 0 });
    valid(object);
  },
  async embeddings(prompt) {
    const { embedding } = await embed({
      model: provider.embeddingModel(MODEL), value: prompt, maxRetries: 0,
    });
    assert.equal(embedding.length, 8);
  },
  async "wrong model"(prompt) {
    await raises(404, generateText({ ...once, model: provider("no-such-model"), prompt }));
  },
  async abort(prompt) {
    const controller = new AbortController();
    const answer = streamText({
      model, prompt: LONG_ANSWER + prompt, abortSignal: controller.signal, maxRetries: 0,
      onError() {},
    });
    await answer.textStream[Symbol.asyncIterator]().next();
    await idle(() => controller.abort());
  },
});
