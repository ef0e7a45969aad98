// Calls of the REST API, and the session.

/** An answer that is not a success; `status` is 0 if there was none. */
export class Problem extends Error {
	constructor(status, body, retryAfter) {
		super(body.detail || body.title || `the server answered ${status}`);
		Object.assign(this, { status, retryAfter, title: body.title, errors: body.errors || [] });
	}
}

export const session = { name: null, role: null };

export const readOnly = () => (session.role === 'operate' ? null : 'This token may only read. Sign in with an operate token to make changes.');

const TIMEOUT_MS = 15000;
let expired = () => {};
export const onExpired = (run) => { expired = run; };

/** Calls the API. `options`: `json` or `yaml` (a body), `headers`, `signal`, `open` (a 401 does not end the session). */
export async function call(method, path, { json, yaml, headers, signal, open } = {}) {
	const timeout = AbortSignal.timeout(TIMEOUT_MS);
	let response, decoded;
	try {
		response = await fetch(path, {
			method, signal: signal ? AbortSignal.any([signal, timeout]) : timeout, cache: 'no-store', body: json ? JSON.stringify(json) : yaml,
			headers: { Accept: 'application/json', ...(json || yaml !== undefined ? { 'Content-Type': `application/${json ? 'json' : 'yaml'}` } : {}), ...headers },
		});
		decoded = await response.text();
	} catch (error) {
		if (signal?.aborted) throw error;
		throw new Problem(0, { title: 'No connection', detail: 'The control plane does not answer.' });
	}
	try {
		decoded = JSON.parse(decoded);
	} catch {
		decoded = { detail: decoded.slice(0, 300) };
	}
	if (response.ok) return decoded;
	if (response.status === 401 && !open) expired();
	throw new Problem(response.status, decoded, Number(response.headers.get('Retry-After')) || null);
}

export const get = (path, options) => call('GET', path, options);
export const post = (path, json) => call('POST', path, { json });

/** A path with each part escaped: `path('v1', 'keys', kind, value)`. */
export const path = (...parts) => '/' + parts.map(encodeURIComponent).join('/');

/** A text as a header value: the bytes of its UTF-8, as a header carries them. */
export const headerText = (text) => String.fromCharCode(...new TextEncoder().encode(text));
