// What the programs for Node share; cases.py says more.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

export const URL = process.argv[2];
export const MODEL = "sim";
const SHORT = "How is the weather in Paris?";
const LONG = SHORT + " Think about it first, and answer then.".repeat(20);
export const LONG_ANSWER = "<<eos:20000>>";

export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};

export async function run(cases) {
  for (const [name, call] of Object.entries(cases)) {
    let detail = "";
    try {
      for (const prompt of [SHORT, LONG]) await call(prompt);
    } catch (error) {
      detail = String(error);
      console.error(error);
    }
    console.log(JSON.stringify({ case: name, ok: !detail, detail }));
  }
}

export function valid(given) {
  const found = typeof given === "string" ? JSON.parse(given) : given;
  assert.deepEqual(Object.keys(found).sort(), ["city", "days"]);
  assert.equal(typeof found.city, "string");
  assert.ok(Number.isInteger(found.days));
}

export async function raises(status, call) {
  await assert.rejects(call, (error) => {
    assert.equal(error.status ?? error.statusCode, status);
    assert.match(error.message, /`no-such-model` does not exist/);
    return true;
  });
}

async function inFlight() {
  const engines = await (await fetch(`${URL}/endpoints`)).json();
  return engines.reduce((sum, engine) => sum + engine.in_flight, 0);
}

export async function idle(leave) {
  assert.equal(await inFlight(), 1);
  await leave();
  const deadline = Date.now() + 10_000;
  while (await inFlight()) {
    assert.ok(Date.now() < deadline, "the router still has the request");
    await sleep(50);
  }
}
