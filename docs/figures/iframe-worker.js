// Search in pages that are opened from a folder. Browsers refuse web workers there, so the script of
// the search runs in a hidden frame, behind the interface of a worker.
if (location.protocol === "file:") {
  const loadScripts = (...urls) => {
    const load = (url) => new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = reject;
      document.body.appendChild(script);
    });
    return urls.reduce((done, url) => done.then(() => load(url)), Promise.resolve());
  };

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.inner = this.frame.contentWindow;
      this.receive = (event) => {
        if (event.source === this.inner) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      };
      window.addEventListener("message", this.receive);

      const page = this.inner.document;
      page.open();
      page.write(
        "<body><script>postMessage = parent.postMessage.bind(parent);"
        + `importScripts = ${loadScripts};</script><script src="${url}"></script></body>`,
      );
      page.close();
      this.ready = new Promise((resolve) => { this.frame.onload = resolve; });
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
