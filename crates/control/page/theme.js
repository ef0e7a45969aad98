// Before the first paint: the theme that was chosen on this machine. Without a choice, the system's is used.
(function () {
	try {
		var theme = localStorage.getItem('tollgate-theme');
		if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
	} catch (error) {
	}
})();
