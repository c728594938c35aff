// Devices and kernel families as the service lists them, asked for once.
import { ask } from "./ask.js";

/** What there is to choose from. */
class Catalogue {
  constructor(devices) {
    this.kernels = {};
    this.devices = devices;
    this.byName = new Map(devices.flatMap((one) => [one.name, ...one.aliases].map((name) => [name.toLowerCase(), one])));
  }

  /** Get the schemas of the kernel families, once; only then is there something under `families` and `schema`. */
  async loadKernels() {
    if (!this.families.length) this.kernels = (await ask("kernels", "v1/kernels")).kernels;
  }

  /** Names of the kernel families. */
  get families() {
    return Object.keys(this.kernels);
  }

  /** JSON Schema of a family's spec. */
  schema(family) {
    return this.kernels[family];
  }

  /** Sizes of a family's first example, by name. */
  exampleSizes(family) {
    const { examples: [example], properties } = this.schema(family);
    return Object.fromEntries(Object.entries(properties.sizes.properties).map(([name, one]) => [name, example.sizes[name] ?? one.default ?? one.minimum]));
  }

  /** The device a name or alias stands for, or undefined. */
  device(name) {
    return this.byName.get(name.toLowerCase());
  }

  /** Catalogue names of devices by any of their names, each once; a name that is not known stays as it is. */
  names(aliases) {
    return [...new Set(aliases.map((name) => this.device(name)?.name ?? name))];
  }

  /** How a device is called on the page. */
  title(name) {
    return this.device(name)?.title ?? name;
  }
}

/** The catalogue of the service that gave this page. */
export async function loadCatalogue() {
  const early = await globalThis.devicesUnderWay;
  const { devices } = early?.ok ? await early.json() : await ask("devices", "v1/devices");
  return new Catalogue(devices);
}
