// The layout library: unpacked from the page and run in a worker, or here if workers are refused.

const waiting = new Map();
let engine = null;

async function librarySource() {
  const bytes = Uint8Array.from(atob(byId("library").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).blob();
}

const scriptUrl = (...parts) => URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));

async function startEngine() {
  const source = await librarySource();
  const started = await inWorker(source).catch(() => onMainThread(source));
  started.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error.message ?? "the layout failed"));
    else resolve(data.data);
  };
  return started;
}

function inWorker(source) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(scriptUrl(source));
    worker.onerror = reject;
    worker.onmessage = () => resolve(worker);
    worker.postMessage({ id: "hello", cmd: "register", algorithms: ["layered"] });
  });
}

// Outside a worker the library exports a substitute for one; a function scope keeps its names local.
function onMainThread(source) {
  return new Promise((resolve, reject) => {
    const open = "window.elkModule={exports:{}};(function(module,exports){";
    const src = scriptUrl(open, source, "\n})(window.elkModule,window.elkModule.exports)");
    const done = () => {
      const worker = new window.elkModule.exports.Worker();
      worker.onmessage = () => resolve(worker);
      worker.postMessage({ id: "hello", cmd: "register", algorithms: ["layered"] });
    };
    document.head.append(html("script", { src, onload: done, onerror: reject }));
  });
}

let asked = 0;

async function elkLayout(graph) {
  engine ??= startEngine();
  const worker = await engine;
  asked += 1;
  const id = asked;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, cmd: "layout", graph, layoutOptions: {}, options: {} });
  });
}
