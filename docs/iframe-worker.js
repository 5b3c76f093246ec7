/* Search where the site is read from files: a browser starts no worker there, so this one runs the worker's script in a hidden frame.

The theme would load such a script from another site. It looks for the name IFrameWorker, and for a script with `src` in the frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((loaded, failed) => {
          const script = inner.document.createElement("script");
          script.src = source;
          script.onload = loaded;
          script.onerror = failed;
          inner.document.head.append(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.ready = load(new URL(url, location.href).href);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
