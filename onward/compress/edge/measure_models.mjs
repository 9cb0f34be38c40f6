// Times models in turns with onnxruntime-web (wasm, one thread): node measure_models.mjs JOB.json
import { readFileSync, writeFileSync } from 'node:fs';

const job = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const ort = await import(job.library);
const api = ort.default?.InferenceSession ? ort.default : ort;
api.env.wasm.numThreads = 1;
api.env.logLevel = 'error';

const arrays = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  uint8: Uint8Array, int8: Int8Array, bool: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  uint32: Uint32Array, uint64: BigUint64Array,
};

function readFeeds(entries) {
  const feeds = {};
  for (const { name, type, dims, file } of entries) {
    const bytes = readFileSync(file);
    const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    feeds[name] = new api.Tensor(type, new arrays[type](copy), dims);
  }
  return feeds;
}

const seconds = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};

const results = {};
const sessions = {};
const feeds = readFeeds(job.feeds);
for (const [name, path] of Object.entries(job.models)) {
  try {
    const start = seconds();
    const session = await api.InferenceSession.create(new Uint8Array(readFileSync(path)), {
      executionProviders: ['wasm'], graphOptimizationLevel: 'all', logSeverityLevel: 3,
    });
    const outputs = await session.run(feeds);
    results[name] = { loadSeconds: seconds() - start, times: [], outputs: {} };
    for (const [output, tensor] of Object.entries(outputs)) {
      if (tensor.type === 'float32') {
        const file = `${job.folder}/${Object.keys(results).length}-${Object.keys(results[name].outputs).length}.f32`;
        writeFileSync(file, new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength));
        results[name].outputs[output] = file;
      }
    }
    sessions[name] = session;
  } catch (error) {
    results[name] = { error: String(error?.message ?? error) };
  }
}
const order = Object.keys(sessions);
for (const name of order) await sessions[name].run(feeds);
const used = Object.fromEntries(order.map((name) => [name, 0]));
while (order.some((name) => results[name].times.length < 5 || used[name] < job.seconds)) {
  for (const name of order) {
    const start = seconds();
    let count = 0;
    do {
      await sessions[name].run(feeds);
      count += 1;
    } while (seconds() - start < 0.01);
    const passed = seconds() - start;
    results[name].times.push(passed / count);
    used[name] += passed;
  }
  order.reverse();
}
writeFileSync(job.result, JSON.stringify(results));
process.exit(0);
