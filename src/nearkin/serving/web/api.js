// The HTTP API; see /openapi.json.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const told = await answer.json().catch(() => null);
  throw new ApiError(answer.status, told?.error?.code ?? "unknown", told?.error?.message ?? `HTTP ${answer.status}`);
}

// What is computed once for the whole index can take longer than one request may; the server goes on meanwhile.
async function patiently(place, signal, times = 20) {
  try {
    return await request(place, { signal });
  } catch (error) {
    if (error.status !== 504 || times === 0) throw error;
    return patiently(place, signal, times - 1);
  }
}

function address(index, rest, values = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") query.append(name, value);
  }
  const told = query.toString();
  return `/api/indexes/${encodeURIComponent(index)}${rest}${told ? `?${told}` : ""}`;
}

export function where(labels) {
  return labels.length ? JSON.stringify({ label: labels }) : null;
}

export const indexes = () => request("/api/indexes");
export const labels = (index, signal) => request(address(index, "/labels"), { signal });
export const item = (index, id, signal) => request(address(index, `/items/${id}`), { signal });
export const items = (index, values, signal) => request(address(index, "/items", values), { signal });
export const clusters = (index, signal) => patiently(address(index, "/clusters"), signal);
export const map = (index, signal) => patiently(address(index, "/map"), signal);
export const similar = (index, id, values, signal) => request(address(index, `/items/${id}/similar`, values), { signal });
export const thumbnail = (index, id, size = 256) => address(index, `/items/${id}/thumbnail`, { size });

export function byUpload(index, file, values, signal) {
  return request(address(index, "/search", values), { method: "POST", body: file, signal });
}

const JSON_BODY = { "content-type": "application/json" };

export function byText(index, text, values, signal) {
  const body = JSON.stringify({ text });
  return request(address(index, "/search", values), { method: "POST", body, headers: JSON_BODY, signal });
}

export const session = (key) =>
  request("/api/session", { method: "POST", body: JSON.stringify({ key }), headers: JSON_BODY });
