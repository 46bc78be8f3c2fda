// Pages to read follow the theme that was chosen on the page of the runs.

document.documentElement.dataset.theme = localStorage.getItem("ampwatch-theme") ?? "system";
