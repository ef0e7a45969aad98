// The login: a token for a session.
import { call } from './api.js';
import { h, show, svg } from './dom.js';
import { field, reason } from './dialog.js';
import { span } from './format.js';

/** `done()` is called with a session; `ended` says why there is none any more. */
export function login(done, ended) {
	const token = h('input.mono', { id: 'token', type: 'password', required: true, autocomplete: 'current-password' });
	const error = h('p.note.bad', { role: 'alert', hidden: true }), go = h('button.btn.main', 'Sign in');
	const submit = async (event) => {
		event.preventDefault();
		go.disabled = true;
		error.hidden = true;
		try {
			await call('POST', '/v1/session', { json: { token: token.value.trim() }, open: true });
			token.value = '';
			await done();
		} catch (problem) {
			error.hidden = false;
			show(error, problem.status === 401 ? 'This token is not valid, or it has expired or been revoked.'
				: problem.status === 429 ? `Too many attempts. Try again in ${span(problem.retryAfter ?? 60)}.` : reason(problem));
			token.select();
		}
		go.disabled = false;
	};
	return h('main.login', h('div.card', h('form', { onsubmit: submit },
		h('div.brand', svg('svg', { viewBox: '0 0 20 20', 'aria-hidden': 'true' }, svg('path', { d: 'M4 17V6M4 8l12-4M16 17V9' })), 'Tollgate'),
		h('h1', 'Sign in'), ended && h('p.note.warn', ended),
		h('input', { type: 'text', autocomplete: 'username', value: 'tollgate', hidden: true }),
		field('Token', token), error, go,
		h('p.faint', 'The first start writes an operate token to ', h('code', 'operate.token'), ' in the data folder and says where. ', h('code', 'tollgate token create'), ' makes more.'))));
}
