// Files made on the page, and tables as text of CSV files (RFC 4180).
import { el } from "./dom.js";

/** Offer `text`, or a blob, as a file. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  window.setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string" && typeof value !== "object") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  // Spreadsheets run what starts like a formula; names and messages come from whoever measured.
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Rows of values as CSV; missing ones are empty, objects are JSON. */
export function csv(columns, rows) {
  return [columns, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}
