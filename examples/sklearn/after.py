"""Naive Bayes on the handwritten digits of scikit-learn, whose confidence is known to be too high."""

from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from calibrant.integrations.sklearn import CalibratedClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=600, random_state=0)

model = CalibratedClassifier(GaussianNB(var_smoothing=1e-3))
model.fit(X_train, y_train)
accuracy = model.score(X_test, y_test)
nll = log_loss(y_test, model.predict_proba(X_test))
print(f"test accuracy {accuracy:.1%}, NLL {nll:.3f}")
